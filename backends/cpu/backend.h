/* The CPU backend: a device is a team of threads behind one in-order queue. */
#pragma once

#include "core/device.h"

struct hr_cpu_config {
        const char *name;        /* "cpu0"; copied */
        uint32_t threads;        /* 0 = one per processor that the process may use */
        bool isolated;           /* own buffer kind: nothing else reads its memory in place */
        uint64_t memory_cap;     /* bytes, 0 = none */
        uint32_t spin_us;        /* how long idle threads spin before they sleep */
        bool deterministic;      /* same bits for any thread count even where it costs */
        const uint32_t *processors; /* pin thread i to processors[i]; NULL = not pinned */
        bool fast;               /* 32-blocks are added up in the fastest order, which is not
                                  * llama.cpp's for all of them */
        const char *isa;         /* "auto", "portable", "avx2", "avx512", "avx512bf16"; NULL = auto.
                                  * HR_E_UNSUPPORTED when the processor lacks it */
        const char *deny_ops;    /* see core/deny.h; NULL = none */
        uint32_t delay_us;       /* added before each split; tests of ordering use it */
        bool wake_all;           /* the whole team even for steps too small to be worth it; tests of
                                  * kernels use it */
};

/* How to convert weights of each type to f32 with the best instructions of this processor:
 * HR_TYPE_LIMIT functions, NULL for a type that is no weight. Static storage. Thread: any. */
const hr_dequantize_fn *hr_cpu_weights_to_f32(void);
/* HR_E_EXHAUSTED without threads or memory. */
HR_NODISCARD hr_status hr_cpu_device_new(const struct hr_cpu_config *config, struct hr_diag *diag,
                                         struct hr_device **ret_device);
