/*
 * FLASH_ATTN_EXT on the matrix units, for keys and values in F16 or blocks of up to ATTENTION_SIZE
 * elements.
 *
 * The heads that share a head of keys, for some queries, are the rows of a tile: row r is query
 * r / group, head r % group of the group, so that keys and values are read once for all of them. A
 * warp has sixteen rows; KEYS keys at a time lie in shared memory as halves, values turned so that
 * two keys share a word. A warp's scores stay in its registers and are at once the left side of the
 * second product: the places of results of the one are those of the other's sources. Keys that no
 * row of the tile sees are not even loaded.
 *
 * With few rows the keys are shared out over `splits` blocks; each leaves its maximum, sum and sums
 * of values, and attention_join puts them together.
 */
#include "backends/cuda/kernels/blocks.cuh"
#include "backends/cuda/kernels/warp.cuh"

#define KEYS 32
#define SIZE CUDA_ATTENTION_SIZE
#define KEY_STRIDE (SIZE / 2 + 4) /* words; the rest keeps rows out of each other's banks */
#define VALUE_STRIDE (KEYS / 2 + 4)
#define STEPS (SIZE / 16)

struct attention_stage {
        uint32_t keys[KEYS][KEY_STRIDE];
        uint32_t values[SIZE][VALUE_STRIDE];
        int is_seen;
};

/* What a block works on. */
struct attention_tile {
        const byte *k, *v;
        int64_t kv_head, batch, row, rows; /* first row of the tile, rows of the group in all */
        int64_t group, first_key, end_key;
};

struct attended_row {
        int64_t head, query;
        const uint16_t *mask;
        float slope;
        bool is_real;
};

DEVICE attended_row row_of_tile(const cuda_attention_args &args, const attention_tile &tile,
                                int64_t row) {
        attended_row r;

        r.is_real = row < tile.rows;
        r.query = quotient(r.is_real ? row : 0, tile.group);
        r.head = tile.kv_head * tile.group + (r.is_real ? row - r.query * tile.group : 0);
        r.slope = head_slope(args.max_bias, args.slope_base, args.slope_half, args.slope_power,
                             r.head);
        r.mask = NULL;
        if (args.mask.is_present)
                r.mask = (const uint16_t *) row_of(args.mask, r.query,
                                                   remainder(r.head, args.mask.ne[2]),
                                                   remainder(tile.batch, args.mask.ne[3]));
        return r;
}

/* ---- Loading --------------------------------------------------------------------------------- */

DEVICE uint32_t pair_of(float low, float high) {
        return float_to_half(low) | (uint32_t) float_to_half(high) << 16;
}

/* Eight halves at element i of a row, or what is left of it. */
DEVICE void load_halves(const byte *row, int i, int end, uint32_t *ret) {
        const uint16_t *from = (const uint16_t *) row + i;

        if (i + 8 <= end && (uintptr_t) from % 16 == 0) {
                piece p = *(const piece *) from;

                for (int j = 0; j < 4; j++)
                        ret[j] = p.word[j];
                return;
        }
        for (int j = 0; j < 4; j++) {
                uint32_t low = i + 2 * j < end ? from[2 * j] : 0;
                uint32_t high = i + 2 * j + 1 < end ? from[2 * j + 1] : 0;

                ret[j] = low | high << 16;
        }
}

/* `count` halves, as words, at element i of row `key`. */
DEVICE void put_words(attention_stage *stage, bool is_value, int key, int i, int count,
                      const uint32_t *words) {
        for (int j = 0; j < count / 2; j++)
                if (is_value) {
                        ((uint16_t *) stage->values[i + 2 * j])[key] = (uint16_t) words[j];
                        ((uint16_t *) stage->values[i + 2 * j + 1])[key] =
                                (uint16_t) (words[j] >> 16);
                } else {
                        stage->keys[key][i / 2 + j] = words[j];
                }
}

/* KEYS rows of keys or values from `first` on; zeros for what does not exist. */
DEVICE void load_rows(const cuda_tensor &t, const byte *base, bool is_value, int64_t first,
                      int64_t end_key, attention_stage *stage) {
        bool is_block = block_size(t.type) > 1;
        int size = (int) t.ne[0], width = is_block ? 32 : 8, parts = SIZE / width;

        for (int item = (int) threadIdx.x; item < KEYS * parts; item += CUDA_THREADS) {
                int key = item / parts, i = item % parts * width;
                int end = first + key < end_key ? size : 0;
                const byte *row = base + (first + key) * t.nb[1];
                uint32_t words[16];
                unit u = {};

                if (!is_block) {
                        load_halves(row, i, end, words);
                } else if (i < end) {
                        unpack_any(t.type, row, i / 32, &u);
                        for (int j = 0; j < 16; j++)
                                words[j] = pair_of(unit_value(&u, 2 * j),
                                                   unit_value(&u, 2 * j + 1));
                } else {
                        for (int j = 0; j < 16; j++)
                                words[j] = 0;
                }
                put_words(stage, is_value, key, i, width, words);
        }
}

/* The warp's rows of Q as fragments of sixteen elements. */
DEVICE void load_query(const cuda_attention_args &args, const attention_tile &tile,
                       const attended_row *rows, uint32_t (*ret)[4]) {
        int pair = (int) (threadIdx.x % 4), end = (int) args.q.ne[0];

#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
                for (int w = 0; w < 4; w++) {
                        const attended_row &row = rows[w % 2];
                        int i = 16 * s + 2 * pair + 8 * (w / 2);
                        const float *q =
                                (const float *) row_of(args.q, row.query, row.head, tile.batch);

                        ret[s][w] = pair_of(row.is_real && i < end ? q[i] : 0.0f,
                                            row.is_real && i + 1 < end ? q[i + 1] : 0.0f);
                }
}

/* Does any row of the tile see one of these keys? For all threads. */
DEVICE bool keys_are_seen(const cuda_attention_args &args, const attention_tile &tile,
                          int64_t first, attention_stage *stage) {
        int64_t last = tile.row + CUDA_ATTENTION_ROWS < tile.rows ? tile.row + CUDA_ATTENTION_ROWS
                                                                  : tile.rows;

        if (!args.mask.is_present)
                return true;
        __syncthreads();
        if (threadIdx.x == 0)
                stage->is_seen = 0;
        __syncthreads();
        for (int64_t row = tile.row + threadIdx.x / KEYS; row < last; row += CUDA_THREADS / KEYS) {
                attended_row r = row_of_tile(args, tile, row);
                int64_t key = first + threadIdx.x % KEYS;

                if (key < tile.end_key && r.mask[key] != 0xfc00u)
                        *(volatile int *) &stage->is_seen = 1;
        }
        __syncthreads();
        return stage->is_seen;
}

/* ---- Attending ------------------------------------------------------------------------------- */

/* Of a warp's sixteen rows; a lane has two of them. */
struct attention_state {
        float most[2], sum[2];       /* the sum: of this lane's keys */
        float values[SIZE / 8][4];
};

/* Scores of KEYS keys, as results of the matrix unit. */
typedef float attention_scores[KEYS / 8][4];

DEVICE void make_scores(const cuda_attention_args &args, const attention_stage &stage,
                        const uint32_t (*query)[4], attention_scores &scores) {
        int line = (int) (threadIdx.x % WARP / 4), pair = (int) (threadIdx.x % 4);

#pragma unroll
        for (int s = 0; s < STEPS; s++)
                if (16 * s < args.q.ne[0])
                        for (int j = 0; j < KEYS / 8; j++) {
                                const uint32_t *words = stage.keys[8 * j + line] + 8 * s + pair;
                                uint32_t b[2] = { words[0], words[4] };

                                multiply_f16(scores[j], query[s], b);
                        }
}

/* Scale, cap, mask. Keys from `first` on. */
DEVICE void finish_scores(const cuda_attention_args &args, const attention_tile &tile,
                          const attended_row *rows, int64_t first, attention_scores &scores) {
        for (int j = 0; j < KEYS / 8; j++)
                for (int c = 0; c < 4; c++) {
                        const attended_row &row = rows[c / 2];
                        int64_t key = first + 8 * j + 2 * (threadIdx.x % 4) + c % 2;
                        float score = scores[j][c] * args.scale;

                        if (args.cap != 0.0f)
                                score = args.cap * tanhf(score / args.cap);
                        if (key >= tile.end_key || !row.is_real)
                                score = -INFINITY;
                        else if (row.mask)
                                score += row.slope * half_to_float(row.mask[key]);
                        scores[j][c] = score;
                }
}

DEVICE float lanes_max(float value) {
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
        return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

DEVICE float lanes_sum(float value) {
        value += __shfl_xor_sync(ALL_LANES, value, 1);
        return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

/* Scores become weights; what was added up before shrinks to the new maximum. */
DEVICE void weigh(attention_scores &scores, attention_state *state) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
                float most = -INFINITY, factor, sum = 0;

                for (int j = 0; j < KEYS / 8; j++)
                        most = fmaxf(most, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
                most = fmaxf(lanes_max(most), state->most[r]);
                factor = most == -INFINITY ? 1.0f : expf(state->most[r] - most);
                for (int j = 0; j < KEYS / 8; j++)
                        for (int c = 2 * r; c < 2 * r + 2; c++) {
                                scores[j][c] = most == -INFINITY ? 0.0f : expf(scores[j][c] - most);
                                sum += scores[j][c];
                        }
                state->most[r] = most;
                state->sum[r] = state->sum[r] * factor + sum;
#pragma unroll
                for (int i = 0; i < SIZE / 8; i++)
                        for (int c = 2 * r; c < 2 * r + 2; c++)
                                state->values[i][c] *= factor;
        }
}

DEVICE void add_values(const cuda_attention_args &args, const attention_stage &stage,
                       const attention_scores &weights, attention_state *state) {
        int line = (int) (threadIdx.x % WARP / 4), pair = (int) (threadIdx.x % 4);

        for (int s = 0; s < KEYS / 16; s++) {
                uint32_t a[4];

                for (int w = 0; w < 4; w++) {
                        const float *from = weights[2 * s + w / 2] + 2 * (w % 2);

                        a[w] = pair_of(from[0], from[1]);
                }
#pragma unroll
                for (int i = 0; i < SIZE / 8; i++) {
                        const uint32_t *words = stage.values[8 * i + line] + 8 * s + pair;
                        uint32_t b[2] = { words[0], words[4] };

                        if (8 * i < args.v.ne[0])
                                multiply_f16(state->values[i], a, b);
                }
        }
}

/* ---- Results --------------------------------------------------------------------------------- */

/* Values of row r of the lane's two, all of them divided by `divisor`. */
DEVICE void write_row(const cuda_attention_args &args, const attention_state &state, int r,
                      float divisor, float *out) {
#pragma unroll
        for (int i = 0; i < SIZE / 8; i++)
                for (int c = 0; c < 2; c++) {
                        int at = 8 * i + 2 * (int) (threadIdx.x % 4) + c;

                        if (at < args.v.ne[0])
                                out[at] = divisor == 0 ? 0 : state.values[i][2 * r + c] / divisor;
                }
}

DEVICE void write_rows(const cuda_attention_args &args, const attention_tile &tile,
                       const attended_row *rows, int64_t split, attention_state *state) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
                const attended_row &row = rows[r];
                float sum = lanes_sum(state->sum[r]), divisor = sum;

                if (!row.is_real)
                        continue;
                if (args.splits > 1) {
                        int64_t flat = ((split * args.q.ne[3] + tile.batch) * args.q.ne[2] +
                                        row.head) * args.q.ne[1] + row.query;
                        float *part = (float *) (uintptr_t) args.parts +
                                      flat * (args.v.ne[0] + 2);

                        if (threadIdx.x % 4 == 0) {
                                part[0] = state->most[r];
                                part[1] = sum;
                        }
                        write_row(args, *state, r, 1.0f, part + 2);
                        continue;
                }
                if (args.sinks.is_present) {
                        float sink = ((const float *) (uintptr_t) args.sinks.data)[row.head];
                        float most = fmaxf(state->most[r], sink);
                        float factor = state->most[r] == -INFINITY ? 0.0f
                                                                   : expf(state->most[r] - most);

                        /* (values * factor) / (sum * factor + sink's) */
                        divisor = factor == 0 ? INFINITY : sum + expf(sink - most) / factor;
                }
                write_row(args, *state, r, divisor,
                          (float *) row_of(args.out, row.head, row.query, tile.batch));
        }
}

DEVICE void attend_tile(const cuda_attention_args &args, const attention_tile &tile, int64_t split,
                        attention_stage *stage) {
        int64_t own = tile.row + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
        bool is_idle = tile.row + threadIdx.x / WARP * 16 >= tile.rows;
        attended_row rows[2] = { row_of_tile(args, tile, own), row_of_tile(args, tile, own + 8) };
        attention_state state = { { -INFINITY, -INFINITY }, { 0, 0 }, {} };
        uint32_t query[STEPS][4];

        load_query(args, tile, rows, query);
        for (int64_t first = tile.first_key; first < tile.end_key; first += KEYS) {
                attention_scores scores = {};

                if (!keys_are_seen(args, tile, first, stage))
                        continue;
                load_rows(args.k, tile.k, false, first, tile.end_key, stage);
                load_rows(args.v, tile.v, true, first, tile.end_key, stage);
                __syncthreads();
                if (!is_idle) {
                        make_scores(args, *stage, query, scores);
                        finish_scores(args, tile, rows, first, scores);
                        weigh(scores, &state);
                        add_values(args, *stage, scores, &state);
                }
                __syncthreads();
        }
        if (!is_idle)
                write_rows(args, tile, rows, split, &state);
}

WIDE_KERNEL(attention_tiles, struct cuda_attention_args) {
        SHARED attention_stage stage;
        int64_t group = quotient(args.q.ne[2], args.k.ne[2]), rows = args.q.ne[1] * group;
        int64_t tiles = (rows + CUDA_ATTENTION_ROWS - 1) / CUDA_ATTENTION_ROWS;
        int64_t per_split = (quotient(args.k.ne[1] + args.splits - 1, args.splits) + KEYS - 1) /
                            KEYS * KEYS;
        int64_t items = tiles * args.k.ne[2] * args.q.ne[3] * args.splits;

        for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
                int64_t left = quotient(item, tiles), split;
                attention_tile tile;

                /* The last rows see the most keys where masks are causal: they go first. */
                tile.row = (tiles - 1 - (item - left * tiles)) * CUDA_ATTENTION_ROWS;
                tile.rows = rows;
                tile.group = group;
                tile.kv_head = remainder(left, args.k.ne[2]);
                left = quotient(left, args.k.ne[2]);
                tile.batch = remainder(left, args.q.ne[3]);
                split = quotient(left, args.q.ne[3]);
                tile.k = row_of(args.k, 0, tile.kv_head,
                                quotient(tile.batch, quotient(args.q.ne[3], args.k.ne[3])));
                tile.v = row_of(args.v, 0,
                                quotient(tile.kv_head * group,
                                         quotient(args.q.ne[2], args.v.ne[2])),
                                quotient(tile.batch, quotient(args.q.ne[3], args.v.ne[3])));
                tile.first_key = split * per_split;
                tile.end_key = tile.first_key + per_split < args.k.ne[1]
                                       ? tile.first_key + per_split
                                       : args.k.ne[1];
                attend_tile(args, tile, split, &stage);
        }
}

/* A block takes a query of a head: the splits' parts by their maxima, and the sink. */
FLAT_KERNEL(attention_join, struct cuda_attention_args) {
        int64_t rows = args.q.ne[1] * args.q.ne[2] * args.q.ne[3];

        for (int64_t flat = blockIdx.x; flat < rows; flat += gridDim.x) {
                row_index at = index_of_row(args.q, flat); /* query, head, batch */
                const float *parts = (const float *) (uintptr_t) args.parts;
                int64_t size = args.v.ne[0] + 2;
                float *out = (float *) row_of(args.out, at.i2, at.i1, at.i3);
                float most = -INFINITY, sum = 0;

                for (int64_t s = 0; s < args.splits; s++)
                        most = fmaxf(most, parts[(s * rows + flat) * size]);
                if (args.sinks.is_present) {
                        float sink = ((const float *) (uintptr_t) args.sinks.data)[at.i2];

                        most = fmaxf(most, sink);
                        sum = expf(sink - most);
                }
                for (int64_t s = 0; s < args.splits && most != -INFINITY; s++) {
                        const float *part = parts + (s * rows + flat) * size;

                        sum += part[1] * expf(part[0] - most);
                }
                for (int64_t i = threadIdx.x; i < args.v.ne[0]; i += CUDA_THREADS) {
                        float total = 0;

                        for (int64_t s = 0; s < args.splits && most != -INFINITY; s++) {
                                const float *part = parts + (s * rows + flat) * size;

                                total += part[2 + i] * expf(part[0] - most);
                        }
                        out[i] = sum == 0 ? 0 : total / sum;
                }
        }
}
