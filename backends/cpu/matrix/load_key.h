/* Elements of keys and values of a float type. */
#pragma once

#include "backends/cpu/matrix/lanes.h"
#include "core/type.h"

/* Elements `at` .. of a key as f32. */
LANES_INLINE lanes_f load_key(uint32_t type, const uint8_t *key, int64_t at) {
        if (type == HR_TYPE_F32)
                return lanes_load_f((const float *) (const void *) key + at);
        return type == HR_TYPE_F16 ? lanes_load_f16(key + 2 * at) : lanes_load_bf16(key + 2 * at);
}
