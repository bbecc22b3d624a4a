/*
 * Placement: which device each tensor of a manifest goes to.
 *
 * Rules are tried in order; the first whose pattern matches the tensor's name decides; a tensor
 * that no rule matches goes to the last device. The device of a rule is
 *   NAME                       that device
 *   fit                    the devices with distinct memory, in priority order, in proportion to
 *                          their free memory
 *   fit:NAME[=WEIGHT],...  the named devices in that order, in proportion to the weights (positive
 *                          decimal numbers; all devices have one or none has), else to their free
 *                          memory
 * `fit` cuts the matched tensors, in order, into consecutive runs. Tensors of one layer (the first
 * component of the name that is a number, as in blk.7.attn_q.weight) stay together, layers follow
 * their numbers, what has no layer goes before the first layer, or after the last one when its name
 * begins with "output". Each device's bytes differ from its share by at most one layer (or tensor,
 * where there are no layers).
 *
 * Patterns are globs: * ? [a-z] [!a-z] and \ before a literal character. Matching takes at most
 * pattern x name steps for any input. Thread: any.
 */
#pragma once

#include "daemon/manifest.h"
#include "scheduler/scheduler.h"

#define HR_PATTERN_BYTES_MAX 256
#define HR_PLACEMENT_DEVICE_BYTES_MAX 1024
/* Bytes of all patterns times bytes of all names: what matching may cost at worst, about 0.1 s. */
#define HR_PLACEMENT_STEPS_MAX (UINT64_C(1) << 27)

bool hr_glob_match(const char *pattern, size_t pattern_bytes, const char *name, size_t name_bytes);

struct hr_placement_rule {
        const char *pattern; /* NUL-terminated */
        const char *device;  /* NUL-terminated */
};

struct hr_placement_share {
        uint64_t planned_bytes;   /* of tensors placed here */
        uint64_t requested_bytes; /* asked of it; equals planned where names decided */
        uint64_t held_bytes;      /* of its memory taken for them: whoever allocates it says so */
};

struct hr_placement {
        uint32_t tensor_count, device_count;
        uint32_t *devices;                 /* device index per tensor */
        struct hr_placement_share *shares; /* per device */
};

/* HR_E_INVALID (reason PLACEMENT) for a malformed rule, HR_E_NOT_FOUND (reason DEVICE) for an
 * unknown device; HR_E_EXHAUSTED without memory or (reason PLACEMENT) when rules times tensors are
 * too many to match. Whether the bytes fit is found out when they are allocated. */
HR_NODISCARD hr_status hr_placement_init(struct hr_placement *placement,
                                         const struct hr_manifest *manifest,
                                         const struct hr_fleet *fleet,
                                         const struct hr_placement_rule *rules,
                                         uint32_t rule_count, struct hr_diag *diag);
/* The same when it is known: a device of the fleet per tensor. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_placement_init_given(struct hr_placement *placement,
                                               const struct hr_manifest *manifest,
                                               uint32_t device_count, const uint32_t *devices,
                                               struct hr_diag *diag);
void hr_placement_deinit(struct hr_placement *placement);

/* The same without a fleet: device names and free bytes are given. Two devices with equal `memory`
 * share their memory. For planning and tests. */
struct hr_placement_device {
        const char *name;
        const void *memory;
        uint64_t free_bytes;
};
HR_NODISCARD hr_status hr_placement_plan(struct hr_placement *placement,
                                         const struct hr_manifest *manifest,
                                         const struct hr_placement_device *devices,
                                         uint32_t device_count,
                                         const struct hr_placement_rule *rules,
                                         uint32_t rule_count, struct hr_diag *diag);
