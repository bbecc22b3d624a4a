/*
 * The arithmetic of fair shares.
 *
 * `finish` of the top is the furthest that any share below it has come. When a device has nothing
 * to do its time goes on to there (the paper's rule for the end of a busy period), so that nobody
 * carries on what happened before.
 */
#include "daemon/share.h"

#include <stdlib.h>

hr_status hr_share_init(struct hr_share *share, struct hr_share *above, uint64_t weight,
                        uint32_t device_count, struct hr_diag *diag) {
        HR_ASSERT(weight > 0 && weight <= HR_SHARE_WEIGHT_MAX);
        HR_ASSERT(!above || above->device_count == device_count);
        *share = (struct hr_share){.above = above, .weight = weight};
        share->tags = calloc(HR_MAX(device_count, 1U), sizeof *share->tags);
        if (!share->tags)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a share of the devices");
        share->device_count = device_count;
        return HR_OK;
}

void hr_share_deinit(struct hr_share *share) {
        free(share->tags);
        *share = (struct hr_share){0};
}

void hr_share_set_weight(struct hr_share *share, uint64_t weight) {
        HR_ASSERT(weight > 0 && weight <= HR_SHARE_WEIGHT_MAX);
        atomic_store_explicit(&share->weight, weight, memory_order_relaxed);
}

/* a - b, 0 where b is ahead; both may have wrapped. */
static uint64_t ahead(uint64_t a, uint64_t b) {
        uint64_t difference = a - b;

        return difference > INT64_MAX ? 0 : difference;
}

static uint64_t weighed(const struct hr_share *share, uint64_t cost_ns) {
        const uint64_t weight = atomic_load_explicit(&share->weight, memory_order_relaxed);
        uint64_t product;

        if (weight == HR_SHARE_WEIGHT && cost_ns <= UINT64_MAX / HR_SHARE_WEIGHT)
                return cost_ns; /* as nearly always, and a division takes long */
        /* A run of three weeks and more counts as one of three weeks. */
        if (!hr_mul_u64(cost_ns, HR_SHARE_WEIGHT, &product))
                product = UINT64_MAX;
        return HR_MIN(product / weight, (uint64_t) INT64_MAX / 4);
}

uint64_t hr_share_lag(const struct hr_share *share, uint32_t device) {
        HR_ASSERT(device < share->device_count && share->above);
        return ahead(share->tags[device].finish, share->above->tags[device].now);
}

void hr_share_use(struct hr_share *share, uint32_t device, uint64_t cost_ns) {
        for (; share->above; share = share->above) {
                struct hr_share_tag *tag = &share->tags[device];
                struct hr_share_tag *top = &share->above->tags[device];

                top->now += hr_share_lag(share, device);
                tag->finish = top->now + weighed(share, cost_ns);
                if (!share->above->above)
                        top->finish += ahead(tag->finish, top->finish);
        }
}

void hr_share_correct(struct hr_share *share, uint32_t device, uint64_t cost_ns,
                      uint64_t actual_ns) {
        for (; share->above; share = share->above) {
                struct hr_share_tag *tag = &share->tags[device];
                struct hr_share_tag *top = &share->above->tags[device];

                tag->finish += weighed(share, actual_ns) - weighed(share, cost_ns);
                if (!share->above->above)
                        top->finish += ahead(tag->finish, top->finish);
        }
}

void hr_share_idle(struct hr_share *top, uint32_t device) {
        struct hr_share_tag *tag = &top->tags[device];

        HR_ASSERT(!top->above);
        tag->now += ahead(tag->finish, tag->now);
}
