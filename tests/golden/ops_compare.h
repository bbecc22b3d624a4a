/* How a computed tensor is measured against a recorded one. */
#pragma once

#include "core/tensor.h"

/* NMSE = sum (g - x)^2 / sum g^2. Elements that are the same infinity on both sides (FLT_MAX counts
 * as infinite) are left out; an infinity on one side only, a NaN, or an x that is not 0 where all
 * of g is, gives +infinity. Packed contents of `elements` elements. */
double ops_nmse(uint32_t type, const uint8_t *expected, const uint8_t *actual, int64_t elements);
/* Every element is equal: the same value for float types, the same bytes otherwise. */
bool ops_exact(uint32_t type, const uint8_t *expected, const uint8_t *actual, int64_t elements);
/* Each row of i32 holds the same indices in any order. */
bool ops_same_sets(const uint8_t *expected, const uint8_t *actual, int64_t row_elements,
                   int64_t rows);
/* Contents as f64; false when the type cannot be expanded. */
bool ops_expand(uint32_t type, const uint8_t *content, int64_t elements, double *ret_values);
/* Is the type written by a search, so that another encoder cannot meet the recorded bytes? */
bool ops_is_searched(uint32_t type);
