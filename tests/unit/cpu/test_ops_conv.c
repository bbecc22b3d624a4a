/* Convolutions over several tiles, blocks of filters and layouts, against their definition. */
#include "tests/unit/cpu/ops_check.h"

#include <float.h>
#include <string.h>

#include "backends/cpu/matrix/half.h"

/* A source element or 0 outside of it, rounded to f16 where the kernel is f16 and rounds. */
static double padded(const struct hr_step *step, int64_t x, int64_t y, int64_t i2, int64_t i3,
                     bool rounds) {
        const struct hr_operand *source = &step->sources[1];
        double value;

        if (x < 0 || x >= source->ne[0] || y < 0 || y >= source->ne[1] || i2 < 0 ||
            i2 >= source->ne[2])
                return 0;
        value = case_value(source, x, y, i2, i3);
        if (rounds && step->sources[0].type == HR_TYPE_F16)
                value = (double) cpu_half_to_float(cpu_float_to_half((float) value));
        return value;
}

static double conv_2d(const struct hr_step *step, int64_t x, int64_t y, int64_t filter,
                      int64_t image) {
        const struct hr_operand *kernel = &step->sources[0];
        const int32_t *p = step->params;
        double sum = 0;

        for (int64_t c = 0; c < kernel->ne[2]; c++)
                for (int64_t ky = 0; ky < kernel->ne[1]; ky++)
                        for (int64_t kx = 0; kx < kernel->ne[0]; kx++)
                                sum += case_value(kernel, kx, ky, c, filter) *
                                       padded(step, x * p[0] + kx * p[4] - p[2],
                                              y * p[1] + ky * p[5] - p[3], c, image, true);
        return sum;
}

static const int32_t plain[16] = { 1, 1, 1, 1, 1, 1 };

HR_TEST_LIMIT(conv_2d_tiles_and_blocks, 60) {
        for (int i = 0; i < 2; i++) {
                struct hr_operand sources[] = {
                        case_operand(i ? HR_TYPE_F16 : HR_TYPE_F32, 3, 3, 7, 70),
                        case_operand(HR_TYPE_F32, 15, 14, 7, 2),
                };
                struct hr_step step = ops_step(HR_OP_CONV_2D, plain, 2, sources,
                                               case_result(HR_TYPE_F32, 15, 14, 70, 2));

                ops_check(&cpu_kernel_conv, &step, conv_2d, 1e-12);
        }
        case_free_all();
}

/* Kernel and source permuted, the kernel therefore packed. */
HR_TEST(conv_2d_permuted) {
        static const int32_t params[16] = { 2, 1, 3, 0, 1, 2 };
        struct hr_operand sources[] = {
                case_swap(case_operand(HR_TYPE_F32, 5, 3, 2, 4), 0, 3),
                case_swap(case_operand(HR_TYPE_F32, 2, 9, 11, 3), 0, 2),
        };
        struct hr_step step;

        /* kernel [4,3,2,5]: 4 wide, 3 high, 2 channels; source [11,9,2,3] */
        step = ops_step(HR_OP_CONV_2D, params, 2, sources, case_result(HR_TYPE_F32, 7, 5, 5, 3));
        ops_check(&cpu_kernel_conv, &step, conv_2d, 1e-12);
        case_free_all();
}

/* A window of more elements than a tile holds by its bytes. */
HR_TEST(conv_2d_wide_window) {
        struct hr_operand sources[] = {
                case_operand(HR_TYPE_F32, 1, 1, 70000, 2),
                case_operand(HR_TYPE_F32, 3, 3, 70000, 1),
        };
        static const int32_t params[16] = { 1, 1, 0, 0, 1, 1 };
        struct hr_step step = ops_step(HR_OP_CONV_2D, params, 2, sources,
                                       case_result(HR_TYPE_F32, 3, 3, 2, 1));

        ops_check(&cpu_kernel_conv, &step, conv_2d, 1e-10);
        case_free_all();
}

HR_TEST(conv_2d_without_channels) {
        struct hr_operand sources[] = {
                case_operand(HR_TYPE_F32, 3, 3, 0, 4),
                case_operand(HR_TYPE_F32, 5, 5, 0, 1),
        };
        struct hr_step step = ops_step(HR_OP_CONV_2D, plain, 2, sources,
                                       case_result(HR_TYPE_F32, 5, 5, 4, 1));

        sources[0].data = sources[1].data = NULL;
        ops_check(&cpu_kernel_conv, &step, conv_2d, 0);
        case_free_all();
}

static double conv_3d(const struct hr_step *step, int64_t x, int64_t y, int64_t z,
                      int64_t plane) {
        const struct hr_operand *kernel = &step->sources[0];
        const int32_t *p = step->params;
        int64_t filter = plane % p[11], image = plane / p[11];
        double sum = 0;

        for (int64_t c = 0; c < p[9]; c++)
                for (int64_t kz = 0; kz < kernel->ne[2]; kz++)
                        for (int64_t ky = 0; ky < kernel->ne[1]; ky++)
                                for (int64_t kx = 0; kx < kernel->ne[0]; kx++)
                                        sum += case_value(kernel, kx, ky, kz, filter * p[9] + c) *
                                               padded(step, x * p[0] + kx * p[6] - p[3],
                                                      y * p[1] + ky * p[7] - p[4],
                                                      z * p[2] + kz * p[8] - p[5],
                                                      image * p[9] + c, true);
        return sum;
}

HR_TEST_LIMIT(conv_3d_planes, 60) {
        static const int32_t params[16] = { 1, 2, 1, 1, 0, 1, 1, 1, 2, 3, 2, 5 };
        struct hr_operand sources[] = {
                case_operand(HR_TYPE_F16, 3, 2, 2, 15),
                case_operand(HR_TYPE_F32, 9, 8, 7, 6),
        };
        struct hr_step step = ops_step(HR_OP_CONV_3D, params, 2, sources,
                                       case_result(HR_TYPE_F32, 9, 4, 7, 10));

        ops_check(&cpu_kernel_conv, &step, conv_3d, 1e-12);
        case_free_all();
}

static double conv_2d_dw(const struct hr_step *step, int64_t x, int64_t y, int64_t channel,
                         int64_t image) {
        const struct hr_operand *kernel = &step->sources[0];
        const int32_t *p = step->params;
        double sum = 0;

        for (int64_t ky = 0; ky < kernel->ne[1]; ky++)
                for (int64_t kx = 0; kx < kernel->ne[0]; kx++)
                        sum += case_value(kernel, kx, ky, 0, channel) *
                               padded(step, x * p[0] + kx * p[4] - p[2],
                                      y * p[1] + ky * p[5] - p[3], channel, image, false);
        return sum;
}

HR_TEST(conv_2d_dw_planes) {
        static const int32_t strided[16] = { 2, 3, 2, 1, 2, 1 };
        struct hr_operand sources[] = {
                case_operand(HR_TYPE_F16, 3, 4, 1, 19),
                case_operand(HR_TYPE_F32, 17, 15, 19, 2),
        };
        struct hr_step step = ops_step(HR_OP_CONV_2D_DW, plain, 2, sources,
                                       case_result(HR_TYPE_F32, 17, 14, 19, 2));

        ops_check(&cpu_kernel_conv_dw, &step, conv_2d_dw, 1e-12);
        /* A window that starts past the end of the line and one that ends before it. */
        step = ops_step(HR_OP_CONV_2D_DW, strided, 2, sources,
                        case_result(HR_TYPE_F32, 9, 5, 19, 2));
        ops_check(&cpu_kernel_conv_dw, &step, conv_2d_dw, 1e-12);
        case_free_all();
}

HR_TEST(conv_2d_dw_interleaved) {
        static const int32_t params[16] = { 1, 2, 1, 0, 1, 1 };
        struct hr_operand sources[] = {
                case_operand(HR_TYPE_F32, 3, 3, 1, 1100),
                case_swap(case_swap(case_operand(HR_TYPE_F32, 1100, 4, 5, 2), 0, 1), 1, 2),
        };
        struct hr_operand result = case_result(HR_TYPE_F32, 4, 2, 1100, 2);
        struct hr_step step;

        /* source [4,5,1100,2] over [1100,4,5,2] */
        HR_EXPECT_EQ(sources[1].ne[0], 4);
        HR_EXPECT_EQ(sources[1].ne[1], 5);
        memcpy(result.nb, (const uint64_t[]) { 4400, 4 * 4400, 4, 8 * 4400 }, sizeof result.nb);
        step = ops_step(HR_OP_CONV_2D_DW, params, 2, sources, result);
        ops_check(&cpu_kernel_conv_dw, &step, conv_2d_dw, 1e-12);
        case_free_all();
}

static double conv_transpose(const struct hr_step *step, int64_t x, int64_t y, int64_t output,
                             int64_t image) {
        const struct hr_operand *kernel = &step->sources[0], *source = &step->sources[1];
        int64_t stride = step->params[0];
        bool is_line = step->op == HR_OP_CONV_TRANSPOSE_1D;
        double sum = 0;

        if (is_line) {
                output = y;
                y = 0;
        }
        for (int64_t sy = 0; sy < (is_line ? 1 : source->ne[1]); sy++)
                for (int64_t sx = 0; sx < source->ne[0]; sx++) {
                        int64_t kx = x - sx * stride, ky = y - sy * stride;

                        if (kx < 0 || kx >= kernel->ne[0] || ky < 0 ||
                            ky >= (is_line ? 1 : kernel->ne[1]))
                                continue;
                        for (int64_t c = 0; c < kernel->ne[is_line ? 2 : 3]; c++)
                                sum += is_line ? case_value(kernel, kx, output, c, 0) *
                                                         padded(step, sx, c, 0, 0, true)
                                               : case_value(kernel, kx, ky, output, c) *
                                                         padded(step, sx, sy, c, image, true);
                }
        return sum;
}

HR_TEST(conv_transpose_2d) {
        static const int32_t params[16] = { 2 };
        struct hr_operand sources[] = {
                case_operand(HR_TYPE_F16, 4, 3, 5, 19),
                case_swap(case_operand(HR_TYPE_F32, 6, 7, 19, 2), 0, 1),
        };
        struct hr_step step = ops_step(HR_OP_CONV_TRANSPOSE_2D, params, 2, sources,
                                       case_result(HR_TYPE_F32, 16, 13, 5, 2));

        ops_check(&cpu_kernel_conv_transpose, &step, conv_transpose, 1e-12);
        case_free_all();
}

HR_TEST(conv_transpose_1d) {
        static const int32_t params[16] = { 3, 0, 1 };
        struct hr_operand sources[] = {
                case_operand(HR_TYPE_F32, 7, 6, 21, 1),
                case_operand(HR_TYPE_F32, 12, 21, 1, 1),
        };
        struct hr_step step = ops_step(HR_OP_CONV_TRANSPOSE_1D, params, 2, sources,
                                       case_result(HR_TYPE_F32, 40, 6, 1, 1));

        ops_check(&cpu_kernel_conv_transpose, &step, conv_transpose, 1e-12);
        case_free_all();
}

static double col2im(const struct hr_step *step, int64_t x, int64_t channel, int64_t i2,
                     int64_t i3) {
        const struct hr_operand *columns = &step->sources[0];
        int64_t taps = columns->ne[0] / step->params[1];
        double sum = 0;

        for (int64_t t = 0; t < columns->ne[1]; t++) {
                int64_t tap = x + step->params[2] - t * step->params[0];

                if (tap >= 0 && tap < taps)
                        sum += case_value(columns, channel * taps + tap, t, 0, 0);
        }
        return sum;
}

HR_TEST(col2im_1d) {
        static const int32_t params[16] = { 3, 2, 4 };
        struct hr_operand sources[] = { case_operand(HR_TYPE_F32, 22, 900, 1, 1) };
        struct hr_step step = ops_step(HR_OP_COL2IM_1D, params, 1, sources,
                                       case_result(HR_TYPE_F32, 2700, 2, 1, 1));

        ops_check(&cpu_kernel_col2im_1d, &step, col2im, 1e-12);
        sources[0] = case_swap(case_operand(HR_TYPE_BF16, 31, 22, 1, 1), 0, 1);
        step = ops_step(HR_OP_COL2IM_1D, params, 1, sources,
                        case_result(HR_TYPE_BF16, 93, 2, 1, 1));
        ops_check(&cpu_kernel_col2im_1d, &step, col2im, 1e-5);
        case_free_all();
}

static double im2col(const struct hr_step *step, int64_t k, int64_t x, int64_t y, int64_t image) {
        const struct hr_operand *kernel = &step->sources[0];
        const int32_t *p = step->params;
        int64_t kx = k % kernel->ne[0], ky = k / kernel->ne[0] % kernel->ne[1];

        return padded(step, x * p[0] + kx * p[4] - p[2], y * p[1] + ky * p[5] - p[3],
                      k / kernel->ne[0] / kernel->ne[1], image, true);
}

HR_TEST(im2col_long_rows) {
        static const int32_t params[16] = { 1, 1, 1, 2, 2, 1, 1 };
        struct hr_operand sources[] = {
                case_operand(HR_TYPE_F16, 3, 3, 300, 1),
                case_swap(case_operand(HR_TYPE_F32, 6, 7, 300, 2), 0, 1),
        };
        struct hr_step step = ops_step(HR_OP_IM2COL, params, 2, sources,
                                       case_result(HR_TYPE_F16, 2700, 5, 8, 2));

        ops_check(&cpu_kernel_im2col, &step, im2col, 0);
        case_free_all();
}

/* ---- Pooling and windows --------------------------------------------------------------------- */

static double pool_1d(const struct hr_step *step, int64_t x, int64_t i1, int64_t i2, int64_t i3) {
        const struct hr_operand *source = &step->sources[0];
        int64_t first = x * step->params[2] - step->params[3], count = 0;
        double sum = 0, most = -(double) FLT_MAX;

        for (int64_t i = 0; i < source->ne[0]; i++)
                if (i >= first && i < first + step->params[1]) {
                        double value = case_value(source, i, i1, i2, i3);

                        sum += value;
                        most = value > most ? value : most;
                        count++;
                }
        return step->params[0] == 0 ? most : count ? sum / (double) count : 0;
}

HR_TEST(pool_1d_wide_windows) {
        for (int32_t kind = 0; kind < 2; kind++) {
                const int32_t params[16] = { kind, 2500, 300, 1000 };
                struct hr_operand sources[] = {
                        case_swap(case_operand(HR_TYPE_F16, 2, 3000, 3, 2), 0, 1)
                };
                struct hr_step step = ops_step(HR_OP_POOL_1D, params, 1, sources,
                                               case_result(HR_TYPE_F32, 9, 2, 3, 2));

                ops_check(&cpu_kernel_pool, &step, pool_1d, kind ? 1e-10 : 0);
        }
        case_free_all();
}

/* All windows but the middle one lie in the padding. */
HR_TEST(pool_1d_empty_windows) {
        for (int32_t kind = 0; kind < 2; kind++) {
                const int32_t params[16] = { kind, 2, 2, 4 };
                struct hr_operand sources[] = { case_operand(HR_TYPE_F32, 2, 3, 1, 1) };
                struct hr_step step = ops_step(HR_OP_POOL_1D, params, 1, sources,
                                               case_result(HR_TYPE_F32, 5, 3, 1, 1));

                ops_check(&cpu_kernel_pool, &step, pool_1d, kind ? 1e-12 : 0);
        }
        case_free_all();
}

static double win_part(const struct hr_step *step, int64_t i0, int64_t i1, int64_t i2,
                       int64_t i3) {
        const struct hr_operand *source = &step->sources[0];
        int64_t across = step->params[0], window = step->params[2];
        int64_t x = i3 % across * window + i1, y = i3 / across * window + i2;

        return x < source->ne[1] && y < source->ne[2] ? case_value(source, i0, x, y, 0) : 0;
}

/* Far wider than the line: the time is that of the line. */
HR_TEST(pool_1d_huge_windows) {
        for (int32_t kind = 0; kind < 2; kind++) {
                const int32_t params[16] = { kind, 1 << 30, 1 << 30, 1 << 30 };
                struct hr_operand sources[] = { case_operand(HR_TYPE_F32, 5, 3, 1, 1) };
                struct hr_step step = ops_step(HR_OP_POOL_1D, params, 1, sources,
                                               case_result(HR_TYPE_F32, 2, 3, 1, 1));

                ops_check(&cpu_kernel_pool, &step, pool_1d, kind ? 1e-12 : 0);
        }
        case_free_all();
}

HR_TEST(win_part_and_back) {
        static const int32_t part[16] = { 4, 3, 5 }, unpart[16] = { 5 };
        struct hr_operand image = case_swap(case_operand(HR_TYPE_F32, 18, 33, 13, 1), 0, 1);
        struct hr_step step = ops_step(HR_OP_WIN_PART, part, 1, &image,
                                       case_result(HR_TYPE_F32, 33, 5, 5, 12));
        struct hr_operand windows;

        ops_check(&cpu_kernel_win_part, &step, win_part, 0);
        windows = step.result;
        step = ops_step(HR_OP_WIN_UNPART, unpart, 1, &windows,
                        case_result(HR_TYPE_F32, 33, 18, 13, 1));
        HR_EXPECT_EQ(ops_run(&cpu_kernel_win_unpart, &step, "auto", 3), 0);
        for (int64_t y = 0; y < 13; y++)
                for (int64_t x = 0; x < 18; x++)
                        for (int64_t c = 0; c < 33; c++)
                                HR_EXPECT(case_value(&step.result, c, x, y, 0) ==
                                          case_value(&image, c, x, y, 0));
        case_free_all();
}
