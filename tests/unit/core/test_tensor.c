#include "core/tensor.h"
#include "tests/harness.h"

HR_TEST(type_rows_are_whole_blocks) {
        static const struct {
                hr_type type;
                int64_t elements;
                uint64_t bytes;
        } rows[] = {
                { HR_TYPE_F32, 7, 28 },     { HR_TYPE_BF16, 3, 6 },    { HR_TYPE_Q4_0, 64, 36 },
                { HR_TYPE_Q4_1, 576, 360 }, { HR_TYPE_Q8_0, 32, 34 },  { HR_TYPE_Q2_K, 256, 84 },
                { HR_TYPE_Q3_K, 512, 220 }, { HR_TYPE_Q6_K, 256, 210 }, { HR_TYPE_IQ4_NL, 32, 18 },
                { HR_TYPE_I64, 0, 0 },      { HR_TYPE_NVFP4, 64, 36 },
        };
        uint64_t bytes;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(rows); i++) {
                HR_EXPECT(hr_type_row_bytes(rows[i].type, rows[i].elements, &bytes));
                HR_EXPECT_EQ(bytes, rows[i].bytes);
        }
        HR_EXPECT(!hr_type_row_bytes(HR_TYPE_Q4_0, 33, &bytes));
        HR_EXPECT(!hr_type_row_bytes(HR_TYPE_F32, -1, &bytes));
        HR_EXPECT(!hr_type_row_bytes(4, 32, &bytes));
        HR_EXPECT(!hr_type_row_bytes(255, 32, &bytes));
        HR_EXPECT(!hr_type_row_bytes(UINT32_MAX, 32, &bytes));
        HR_EXPECT_EQ(hr_type_from_name("Q4_K"), HR_TYPE_Q4_K);
        HR_EXPECT_EQ(hr_type_from_name("q9"), -1);
}

HR_TEST(tensor_sizes_that_wrap_are_refused) {
        static const int64_t shapes[][HR_DIMS] = {
                { INT64_MAX, 1, 1, 1 },
                { (int64_t) 1 << 32, (int64_t) 1 << 32, 1, 1 },
                { (int64_t) 1 << 20, (int64_t) 1 << 20, (int64_t) 1 << 20, (int64_t) 1 << 20 },
                { -1, 1, 1, 1 },
                { 1, 1, 1, INT64_MIN },
                { (int64_t) 1 << 61, 1, 1, 1 },
                { 0, (int64_t) 1 << 31, (int64_t) 1 << 31, 1 },
                { (int64_t) 1 << 31, (int64_t) 1 << 31, 1, 0 },
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(shapes); i++) {
                struct hr_tensor tensor = { .type = HR_TYPE_F32 };
                struct hr_diag diag = { 0 };

                memcpy(tensor.ne, shapes[i], sizeof tensor.ne);
                HR_EXPECT_EQ(hr_tensor_set_contiguous(&tensor, &diag), HR_E_INVALID);
                HR_EXPECT_STREQ(hr_diag_reason(&diag), "SIZE");
        }
}

HR_TEST(tensor_strides_beyond_32_bits_are_exact) {
        struct hr_tensor tensor = { .type = HR_TYPE_F32, .ne = { 1536, 2048, 288, 1 } };
        struct hr_diag diag = { 0 };
        uint64_t span;

        HR_EXPECT_OK(hr_tensor_set_contiguous(&tensor, &diag), &diag);
        HR_EXPECT_EQ(tensor.nb[3], UINT64_C(3623878656));
        HR_EXPECT_EQ(hr_tensor_bytes(&tensor), UINT64_C(3623878656));
        tensor.ne[3] = 3;
        tensor.nb[3] = UINT64_C(5) << 30;
        HR_EXPECT_OK(hr_tensor_span(&tensor, &diag, &span), &diag);
        HR_EXPECT_EQ(span, (UINT64_C(10) << 30) + UINT64_C(3623878656));
        tensor.nb[3] = UINT64_MAX / 2;
        HR_EXPECT_EQ(hr_tensor_span(&tensor, &diag, &span), HR_E_INVALID);
}

HR_TEST(tensor_spans_that_are_none) {
        static const struct {
                uint32_t type;
                int64_t ne0, ne1;
                uint64_t nb0, nb1;
                uint64_t span; /* UINT64_MAX: refused */
        } cases[] = {
                { HR_TYPE_F32, 4, 3, 4, 16, 48 },
                { HR_TYPE_F32, 0, 3, 4, 16, 0 },
                { HR_TYPE_Q4_0, 64, 3, 18, 36, 108 },
                { HR_TYPE_Q4_0, 16, 3, 18, 36, UINT64_MAX }, /* not a whole block */
                { HR_TYPE_F32, -1, 3, 4, 16, UINT64_MAX },
                { HR_TYPE_F32, 4, 3, 4, UINT64_MAX / 2 + 1, UINT64_MAX }, /* the product wraps */
                { HR_TYPE_F32, 4, 2, 4, UINT64_MAX, UINT64_MAX },         /* the sum wraps */
                { HR_TYPE_F32, 4, 2, 4, INT64_MAX, UINT64_MAX },
                { UINT32_MAX, 4, 3, 4, 16, UINT64_MAX },
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                const struct hr_tensor tensor = { .type = cases[i].type,
                                                  .ne = { cases[i].ne0, cases[i].ne1, 1, 1 },
                                                  .nb = { cases[i].nb0, cases[i].nb1 } };
                const bool good = cases[i].span != UINT64_MAX;
                struct hr_diag diag = { 0 };
                uint64_t span = 0;

                HR_EXPECT_EQ(hr_tensor_span(&tensor, &diag, &span), good ? HR_OK : HR_E_INVALID);
                if (good)
                        HR_EXPECT_EQ(span, cases[i].span);
                else
                        HR_EXPECT_STREQ(hr_diag_reason(&diag), "SIZE");
        }
        /* What hr_tensor_set_contiguous() counts on. */
        for (uint32_t type = 0; type < 64; type++)
                HR_EXPECT(!hr_type_info(type) || hr_type_info(type)->block_elements != 1 ||
                          hr_type_info(type)->block_bytes <= 8);
}

HR_TEST(tensor_contiguity_looks_only_at_real_neighbours) {
        struct hr_tensor tensor = { .type = HR_TYPE_F32, .ne = { 4, 3, 1, 1 } };

        HR_EXPECT_OK(hr_tensor_set_contiguous(&tensor, NULL), &(struct hr_diag) { 0 });
        HR_EXPECT(hr_tensor_is_contiguous(&tensor));
        tensor.nb[2] = 1000;
        HR_EXPECT(hr_tensor_is_contiguous(&tensor));
        tensor.nb[1] = 20;
        HR_EXPECT(!hr_tensor_is_contiguous(&tensor));
        HR_EXPECT(hr_tensor_rows_are_contiguous(&tensor));
        tensor.nb[0] = 8;
        HR_EXPECT(!hr_tensor_rows_are_contiguous(&tensor));
        tensor.ne[1] = 0;
        HR_EXPECT(hr_tensor_is_contiguous(&tensor));
        HR_EXPECT_EQ(hr_tensor_bytes(&tensor), 0);
}

HR_TEST(tensor_repeats_divides_every_extent) {
        struct hr_tensor whole = { .ne = { 6, 4, 2, 1 } };

        HR_EXPECT(hr_tensor_repeats(&(struct hr_tensor) { .ne = { 3, 4, 1, 1 } }, &whole));
        HR_EXPECT(!hr_tensor_repeats(&(struct hr_tensor) { .ne = { 4, 4, 1, 1 } }, &whole));
        HR_EXPECT(!hr_tensor_repeats(&(struct hr_tensor) { .ne = { 0, 4, 1, 1 } }, &whole));
}

HR_TEST(ops_have_stable_numbers) {
        /* Recorded when the numbers were given out; a change breaks every client. */
        HR_EXPECT_EQ(HR_OP_CPY, 12);
        HR_EXPECT_EQ(HR_OP_ADD, 30);
        HR_EXPECT_EQ(HR_OP_MUL_MAT, 100);
        HR_EXPECT_EQ(HR_OP_FLASH_ATTN_EXT, 123);
        HR_EXPECT_EQ(HR_OP_SSM_SCAN, 181);
        HR_EXPECT_EQ(hr_op_from_name("MUL_MAT_ID"), HR_OP_MUL_MAT_ID);
        HR_EXPECT(!hr_op_info(5));
        HR_EXPECT(!hr_op_info(UINT32_MAX));
        HR_EXPECT_STREQ(hr_op_name(99999), "?");
        HR_EXPECT(hr_op_is_view(HR_OP_PERMUTE) && !hr_op_is_view(HR_OP_CONT));
}

/* Around the extents up to which no product is checked; the products are counted in 128 bits. */
HR_TEST(tensor_strides_of_any_extents) {
        static const int64_t extents[] = { 0, 1, 2, 3, 32767, 32768, 32769, 1 << 20 };
        static const uint32_t types[] = { HR_TYPE_F32, HR_TYPE_F16, HR_TYPE_I64, HR_TYPE_Q4_0 };
        const uint32_t count = HR_ARRAY_LENGTH(extents);

        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(types) * count * count * count * count; i++) {
                uint32_t rest = i / (uint32_t) HR_ARRAY_LENGTH(types);
                struct hr_tensor tensor = { .type = types[i % HR_ARRAY_LENGTH(types)] };
                const struct hr_type_info *info = hr_type_info(tensor.type);
                unsigned __int128 stride[HR_DIMS + 1] = { info->block_bytes };
                unsigned __int128 whole = info->block_bytes; /* as if no extent were 0 */
                hr_status status;

                for (uint32_t d = 0; d < HR_DIMS; d++, rest /= count) {
                        tensor.ne[d] = extents[rest % count] * (d ? 1 : info->block_elements);
                        stride[d + 1] =
                                stride[d] *
                                (unsigned __int128) (tensor.ne[d] / (d ? 1 : info->block_elements));
                        if (tensor.ne[d])
                                whole *= (unsigned __int128) (tensor.ne[d] /
                                                              (d ? 1 : info->block_elements));
                }
                status = hr_tensor_set_contiguous(&tensor, NULL);
                HR_EXPECT_EQ(status, whole > INT64_MAX ? HR_E_INVALID : HR_OK);
                for (uint32_t d = 0; d < HR_DIMS && status == HR_OK; d++)
                        HR_EXPECT_EQ(tensor.nb[d], (uint64_t) stride[d]);
        }
}
