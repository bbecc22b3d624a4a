/*
 * Writing graphs in columns, and manifests both ways.
 *
 * The encoder of graphs is for clients in C and for tests: it writes what the decoder reads, with
 * view bases that are roots, strides only where a tensor is not contiguous, and parameters up to
 * the last word that is not zero. Every field is written in the order of its number, so equal
 * graphs have equal bytes and equal digests.
 */
#include "core/tensor.h"
#include "proto/columns.h"

/* ---- graph encoding -------------------------------------------------------------------------- */

static bool put_packed(pb_ostream_t *stream, uint32_t tag, uint64_t bytes) {
        return pb_encode_tag(stream, PB_WT_STRING, tag) && pb_encode_varint(stream, bytes);
}

static bool put_word(pb_ostream_t *stream, uint32_t value) {
        return pb_write(stream, (const pb_byte_t *) &value, sizeof value);
}

static bool put_long(pb_ostream_t *stream, uint64_t value) {
        return pb_write(stream, (const pb_byte_t *) &value, sizeof value);
}

static uint32_t param_words(const struct hr_tensor *node) {
        uint32_t words = HR_OP_PARAM_WORDS;

        while (words > 0 && node->params[words - 1] == 0)
                words--;
        return words;
}

static bool has_own_strides(const struct hr_tensor *tensor) {
        struct hr_tensor plain = *tensor;

        return hr_tensor_set_contiguous(&plain, NULL) != HR_OK ||
               memcmp(plain.nb, tensor->nb, sizeof plain.nb) != 0;
}

struct graph_totals {
        uint32_t tensors, views, strides, constants;
        uint64_t params;
};

static struct graph_totals graph_totals_of(const struct hr_graph *graph) {
        struct graph_totals totals = {.tensors = graph->leaf_count + graph->node_count};

        for (uint32_t i = 0; i < totals.tensors; i++) {
                const struct hr_tensor *tensor = &graph->tensors[i];

                totals.views += tensor->view_base != HR_TENSOR_NONE;
                totals.strides += has_own_strides(tensor);
                totals.constants += tensor->leaf_kind == HR_LEAF_CONSTANT;
                totals.params += i >= graph->leaf_count ? param_words(tensor) : 0;
        }
        return totals;
}

/* One word of each tensor from `first` on. */
static bool put_tensor_words(pb_ostream_t *stream, const struct hr_graph *graph, uint32_t tag,
                             uint32_t first, uint32_t count,
                             uint32_t (*word)(const struct hr_tensor *tensor)) {
        if (count == 0)
                return true;
        if (!put_packed(stream, tag, (uint64_t) count * 4))
                return false;
        for (uint32_t i = first; i < first + count; i++)
                if (!put_word(stream, word(&graph->tensors[i])))
                        return false;
        return true;
}

static uint32_t word_op(const struct hr_tensor *tensor) {
        return tensor->op;
}

static uint32_t word_type(const struct hr_tensor *tensor) {
        return tensor->type;
}

static uint32_t word_flags(const struct hr_tensor *tensor) {
        return tensor->flags;
}

static uint32_t word_leaf_kind(const struct hr_tensor *tensor) {
        return tensor->leaf_kind;
}

static uint32_t word_source_count(const struct hr_tensor *tensor) {
        return tensor->source_count;
}

static bool put_shapes(pb_ostream_t *stream, const struct hr_graph *graph, uint32_t tensors) {
        if (tensors == 0)
                return true;
        if (!put_packed(stream, 5, (uint64_t) tensors * HR_DIMS * 8))
                return false;
        for (uint32_t i = 0; i < tensors; i++)
                if (!pb_write(stream, (const pb_byte_t *) graph->tensors[i].ne,
                              sizeof graph->tensors[i].ne))
                        return false;
        return true;
}

/* Sources in the nodes' order, which need not be the order of their storage. */
static bool put_sources(pb_ostream_t *stream, const struct hr_graph *graph) {
        uint64_t total = 0;

        for (uint32_t i = 0; i < graph->node_count; i++)
                total += hr_graph_node(graph, i)->source_count;
        if (total == 0)
                return true;
        if (!put_packed(stream, 8, total * 4))
                return false;
        for (uint32_t i = 0; i < graph->node_count; i++) {
                const struct hr_tensor *node = hr_graph_node(graph, i);

                for (uint32_t s = 0; s < node->source_count; s++)
                        if (!put_word(stream, hr_graph_source(graph, node, s)))
                                return false;
        }
        return true;
}

static bool put_params(pb_ostream_t *stream, const struct hr_graph *graph, uint64_t total) {
        if (!put_tensor_words(stream, graph, 9, graph->leaf_count, graph->node_count, param_words))
                return false;
        if (total == 0)
                return true;
        if (!put_packed(stream, 10, total * 4))
                return false;
        for (uint32_t i = 0; i < graph->node_count; i++) {
                const struct hr_tensor *node = hr_graph_node(graph, i);

                if (!pb_write(stream, (const pb_byte_t *) node->params, param_words(node) * 4))
                        return false;
        }
        return true;
}

static bool put_views(pb_ostream_t *stream, const struct hr_graph *graph,
                      const struct graph_totals *totals) {
        if (totals->views == 0)
                return true;
        for (uint32_t tag = 11; tag <= 13; tag++) {
                if (!put_packed(stream, tag, (uint64_t) totals->views * (tag == 13 ? 8 : 4)))
                        return false;
                for (uint32_t i = 0; i < totals->tensors; i++) {
                        const struct hr_tensor *tensor = &graph->tensors[i];

                        if (tensor->view_base == HR_TENSOR_NONE)
                                continue;
                        if (tag == 13 ? !put_long(stream, tensor->view_offset)
                                      : !put_word(stream, tag == 11 ? i : tensor->view_base))
                                return false;
                }
        }
        return true;
}

static bool put_strides(pb_ostream_t *stream, const struct hr_graph *graph,
                        const struct graph_totals *totals) {
        if (totals->strides == 0)
                return true;
        if (!put_packed(stream, 14, (uint64_t) totals->strides * 4))
                return false;
        for (uint32_t i = 0; i < totals->tensors; i++)
                if (has_own_strides(&graph->tensors[i]) && !put_word(stream, i))
                        return false;
        if (!put_packed(stream, 15, (uint64_t) totals->strides * HR_DIMS * 8))
                return false;
        for (uint32_t i = 0; i < totals->tensors; i++)
                if (has_own_strides(&graph->tensors[i]) &&
                    !pb_write(stream, (const pb_byte_t *) graph->tensors[i].nb,
                              sizeof graph->tensors[i].nb))
                        return false;
        return true;
}

static bool put_blob(pb_ostream_t *stream, uint32_t tag, const void *bytes, uint64_t size) {
        return size == 0 || (put_packed(stream, tag, size) && pb_write(stream, bytes, size));
}

static bool put_names(pb_ostream_t *stream, const struct hr_graph *graph, uint32_t tensors) {
        if (tensors == 0)
                return true;
        if (!put_packed(stream, 16, (uint64_t) tensors * 4))
                return false;
        for (uint32_t i = 0; i < tensors; i++)
                if (!put_word(stream,
                              (uint32_t) (graph->name_offsets[i + 1] - graph->name_offsets[i])))
                        return false;
        return put_blob(stream, 17, graph->names, graph->name_offsets[tensors]);
}

static bool put_constants(pb_ostream_t *stream, const struct hr_graph *graph,
                          const struct graph_totals *totals) {
        if (totals->constants == 0)
                return true;
        if (!put_packed(stream, 18, (uint64_t) totals->constants * 8))
                return false;
        for (uint32_t i = 0; i < graph->leaf_count; i++)
                if (graph->tensors[i].leaf_kind == HR_LEAF_CONSTANT &&
                    !put_long(stream, graph->constant_offsets[i + 1] - graph->constant_offsets[i]))
                        return false;
        return put_blob(stream, 19, graph->constants, graph->constant_offsets[graph->leaf_count]);
}

static bool put_graph(pb_ostream_t *stream, const struct hr_graph *graph) {
        struct graph_totals totals = graph_totals_of(graph);
        uint32_t leaves = graph->leaf_count;

        if (leaves > 0 &&
            !(pb_encode_tag(stream, PB_WT_VARINT, 1) && pb_encode_varint(stream, leaves)))
                return false;
        return put_tensor_words(stream, graph, 2, leaves, graph->node_count, word_op) &&
               put_tensor_words(stream, graph, 3, 0, totals.tensors, word_type) &&
               put_tensor_words(stream, graph, 4, 0, totals.tensors, word_flags) &&
               put_shapes(stream, graph, totals.tensors) &&
               put_tensor_words(stream, graph, 6, 0, leaves, word_leaf_kind) &&
               put_tensor_words(stream, graph, 7, leaves, graph->node_count, word_source_count) &&
               put_sources(stream, graph) && put_params(stream, graph, totals.params) &&
               put_views(stream, graph, &totals) && put_strides(stream, graph, &totals) &&
               put_names(stream, graph, totals.tensors) && put_constants(stream, graph, &totals);
}

hr_status hr_wire_graph_encode(const struct hr_graph *graph, uint8_t *buffer, size_t capacity,
                               struct hr_diag *diag, size_t *ret_bytes) {
        pb_ostream_t stream = PB_OSTREAM_SIZING;

        if (buffer)
                stream = pb_ostream_from_buffer(buffer, capacity);
        if (!put_graph(&stream, graph))
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "MESSAGE", "graph over %zu bytes",
                                      capacity);
        *ret_bytes = stream.bytes_written;
        return HR_OK;
}

/* ---- manifests ------------------------------------------------------------------------------- */

enum {
        MANIFEST_NAME_LENGTHS = 1,
        MANIFEST_NAMES,
        MANIFEST_TYPE,
        MANIFEST_NE,
        MANIFEST_LEAF_DIGESTS
};

static hr_status manifest_fill(const struct hr_columns *columns, uint32_t count,
                               struct hr_arena *arena, struct hr_diag *diag,
                               struct hr_wire_manifest *ret_manifest) {
        const struct hr_column *at = columns->at;
        uint64_t name_bytes = at[MANIFEST_NAMES].bytes;
        uint32_t *lengths = hr_arena_alloc(arena, (uint64_t) count * 4, 8);
        uint32_t *types = hr_arena_alloc(arena, (uint64_t) count * 4, 8);
        int64_t *ne = hr_arena_alloc(arena, (uint64_t) count * HR_DIMS * 8, 8);
        char *names = hr_arena_alloc(arena, name_bytes, 1);
        uint64_t digests_bytes = at[MANIFEST_LEAF_DIGESTS].bytes;
        uint8_t *digests = hr_arena_alloc(arena, digests_bytes, 1);
        uint64_t offset = 0;

        if (!lengths || !types || !ne || !names || !digests)
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "LIMIT", "manifest too large");
        for (uint32_t i = 0; i < count; i++) {
                uint32_t length = hr_column_u32(&at[MANIFEST_NAME_LENGTHS], i);

                lengths[i] = length;
                if (!hr_codec_text_is_valid((const char *) at[MANIFEST_NAMES].data + offset,
                                            length))
                        return hr_fail_reason(diag, HR_E_INVALID, "UTF8",
                                              "name of tensor %u is no valid UTF-8", i);
                offset += length;
        }
        HR_ASSERT(offset == name_bytes);
        if (digests_bytes > 0)
                memcpy(digests, at[MANIFEST_LEAF_DIGESTS].data, digests_bytes);
        if (name_bytes > 0)
                memcpy(names, at[MANIFEST_NAMES].data, name_bytes);
        if (count > 0) {
                memcpy(types, at[MANIFEST_TYPE].data, (size_t) count * 4);
                memcpy(ne, at[MANIFEST_NE].data, (size_t) count * HR_DIMS * 8);
        }
        *ret_manifest = (struct hr_wire_manifest){.count = count,
                                                  .name_lengths = lengths,
                                                  .names = names,
                                                  .names_bytes = name_bytes,
                                                  .types = types,
                                                  .ne = ne,
                                                  .leaf_digests_bytes = digests_bytes,
                                                  .leaf_digests = digests};
        return HR_OK;
}

static hr_status manifest_read(struct hr_columns *columns, struct hr_wire_span message,
                               const struct hr_wire_manifest_limits *limits, struct hr_arena *arena,
                               struct hr_diag *diag, struct hr_wire_manifest *ret_manifest) {
        const uint64_t most = HR_MIN(limits->tensors_max, UINT64_C(0xFFFFFFFE));
        const struct hr_column *at = columns->at;
        uint64_t count;

        HR_TRY(hr_columns_scan(columns, message, diag));
        count = hr_column_count(&at[MANIFEST_TYPE]);
        if (count > most) {
                hr_status status = hr_fail_reason(diag, HR_E_EXHAUSTED, "LIMIT",
                                                  "%llu tensors, at most %llu",
                                                  (unsigned long long) count,
                                                  (unsigned long long) most);

                if (diag) {
                        diag->limit = most;
                        diag->actual = count;
                }
                return status;
        }
        HR_TRY(hr_columns_gather(columns, message, diag));
        HR_TRY(hr_column_expect(&at[MANIFEST_NAME_LENGTHS], "name_lengths", count, diag));
        HR_TRY(hr_column_expect(&at[MANIFEST_NE], "ne", count * HR_DIMS, diag));
        HR_TRY(hr_column_expect(&at[MANIFEST_NAMES], "names",
                                hr_column_sum_u32(&at[MANIFEST_NAME_LENGTHS]), diag));
        return manifest_fill(columns, (uint32_t) count, arena, diag, ret_manifest);
}

hr_status hr_wire_manifest_decode(struct hr_wire_span message,
                                  const struct hr_wire_manifest_limits *limits,
                                  struct hr_arena *arena, struct hr_diag *diag,
                                  struct hr_wire_manifest *ret_manifest) {
        struct hr_columns columns = {0};
        hr_status status;

        for (uint32_t i = 0; i < HR_COLUMN_TAGS; i++)
                columns.at[i].width = UINT8_MAX;
        columns.at[MANIFEST_NAME_LENGTHS].width = 4;
        columns.at[MANIFEST_NAMES].width = 1;
        columns.at[MANIFEST_TYPE].width = 4;
        columns.at[MANIFEST_NE].width = 8;
        columns.at[MANIFEST_LEAF_DIGESTS].width = 1;
        status = manifest_read(&columns, message, limits, arena, diag, ret_manifest);
        hr_columns_deinit(&columns);
        return status;
}

static bool put_manifest(pb_ostream_t *stream, const struct hr_wire_manifest *manifest) {
        uint32_t count = manifest->count;

        if (count == 0)
                return true;
        return put_blob(stream, MANIFEST_NAME_LENGTHS, manifest->name_lengths,
                        (uint64_t) count * 4) &&
               put_blob(stream, MANIFEST_NAMES, manifest->names, manifest->names_bytes) &&
               put_blob(stream, MANIFEST_TYPE, manifest->types, (uint64_t) count * 4) &&
               put_blob(stream, MANIFEST_NE, manifest->ne, (uint64_t) count * HR_DIMS * 8) &&
               put_blob(stream, MANIFEST_LEAF_DIGESTS, manifest->leaf_digests,
                        manifest->leaf_digests_bytes);
}

hr_status hr_wire_manifest_encode(const struct hr_wire_manifest *manifest, uint8_t *buffer,
                                  size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        pb_ostream_t stream = PB_OSTREAM_SIZING;

        if (buffer)
                stream = pb_ostream_from_buffer(buffer, capacity);
        if (!put_manifest(&stream, manifest))
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "MESSAGE", "manifest over %zu bytes",
                                      capacity);
        *ret_bytes = stream.bytes_written;
        return HR_OK;
}
