/* What the two ways of FLASH_ATTN_EXT share. Private to flash_attn*.c. */
#pragma once

#include <math.h>

#include "backends/cpu/matrix/share.h"

#define KEYS 64 /* of a block; a multiple of all lanes */

static inline bool cpu_source_is_present(const struct hr_step *step, uint32_t source) {
        return step->source_count > source && step->sources[source].type != HR_OPERAND_ABSENT;
}

/* The slope of ALiBi for a head; 1 without it. */
float cpu_head_slope(float bias_max, int64_t heads, int64_t head);

/* total[DV] over `sum`, with the head's sink, to `out`. Changes total. */
void cpu_finish_attention(const struct cpu_call *call, const struct hr_operand *sinks,
                          int64_t head, float *total, float sum, float maximum, uint8_t *out);

/* flash_attn_walk.c: bytes of scratch, and the kernel. */
uint64_t cpu_attention_walk_scratch(const struct hr_step *step, uint32_t threads);
void cpu_attention_walk(const struct cpu_call *call);
