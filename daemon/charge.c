/* Accounts, and the table of what is charged under which limits. */
#include "daemon/charge.h"

static const struct {
        const char *name, *session_field, *principal_field;
        size_t limit; /* of a principal: offset into struct hr_limits */
} kinds[HR_CHARGE_KINDS] = {
#define ROW(kind, what) \
        [HR_CHARGE_##kind] = {#what, "session_" #what, "principal_" #what, \
                              offsetof(struct hr_limits, principal_##what)}
        ROW(WEIGHTS, weights),
        ROW(STATES, states),
        ROW(GRAPHS, graphs),
        ROW(RESERVATIONS, reservations),
        ROW(REGIONS, regions),
        ROW(RUNS, runs),
        ROW(STATE_BYTES, state_bytes),
        ROW(BUFFER_BYTES, buffer_bytes),
        ROW(UPLOADS, uploads),
        ROW(WEIGHT_BYTES, weight_bytes),
        ROW(PLAN_BYTES, plan_bytes),
        ROW(DEVICE_BYTES, device_bytes),
        ROW(SESSIONS, sessions),
        ROW(CONNECTIONS, connections),
        ROW(UPLOAD_BYTES, upload_bytes),
        ROW(DESCRIPTORS, descriptors),
        ROW(OUTPUT_BYTES, output_bytes),
#undef ROW
};

const char *hr_charge_name(hr_charge_kind kind) {
        return kinds[kind].name;
}

uint64_t hr_charge_limit(const struct hr_limits *limits, hr_charge_kind kind) {
        return *(const uint64_t *) ((const char *) limits + kinds[kind].limit);
}

hr_status hr_charge(uint64_t *counter, uint64_t amount, uint64_t limit, const char *field,
                    struct hr_diag *diag) {
        uint64_t sum;
        hr_status status;

        if (hr_add_u64(*counter, amount, &sum) && sum <= limit) {
                *counter = sum;
                return HR_OK;
        }
        if (*counter == 0) /* an option of a request, or the first of its kind */
                status = hr_fail_reason(diag, HR_E_EXHAUSTED, "LIMIT", "%s: %llu, at most %llu",
                                        field, (unsigned long long) amount,
                                        (unsigned long long) limit);
        else
                status = hr_fail_reason(diag, HR_E_EXHAUSTED, "LIMIT",
                                        "%s: %llu held, %llu more, at most %llu", field,
                                        (unsigned long long) *counter, (unsigned long long) amount,
                                        (unsigned long long) limit);
        if (diag && diag->status == status) {
                diag->field = field;
                diag->limit = limit;
                diag->actual = hr_add_u64(*counter, amount, &sum) ? sum : UINT64_MAX;
        }
        return status;
}

void hr_discharge(uint64_t *counter, uint64_t amount) {
        HR_ASSERT(*counter >= amount);
        *counter -= amount;
}

hr_status hr_account_charge(struct hr_account *session, struct hr_account *principal,
                            const struct hr_limits *limits, hr_charge_kind kind, uint64_t amount,
                            uint64_t session_limit, struct hr_diag *diag) {
        hr_status status;

        if (session)
                HR_TRY(hr_charge(&session->held[kind], amount, session_limit,
                                 kinds[kind].session_field, diag));
        status = hr_charge(&principal->held[kind], amount, hr_charge_limit(limits, kind),
                           kinds[kind].principal_field, diag);
        /* Limits may be as large as anything: the sum of what they allow has an end of its own. */
        if (status == HR_OK && principal->above) {
                status = hr_charge(&principal->above->held[kind], amount, UINT64_MAX,
                                   kinds[kind].principal_field, diag);
                if (status != HR_OK)
                        hr_discharge(&principal->held[kind], amount);
        }
        if (status != HR_OK && session)
                hr_discharge(&session->held[kind], amount);
        return status;
}

void hr_account_discharge(struct hr_account *session, struct hr_account *principal,
                          hr_charge_kind kind, uint64_t amount) {
        if (session)
                hr_discharge(&session->held[kind], amount);
        hr_discharge(&principal->held[kind], amount);
        if (principal->above)
                hr_discharge(&principal->above->held[kind], amount);
}

void hr_account_init(struct hr_account *account, struct hr_account *above, const char *field,
                     uint64_t device_bytes_max) {
        account->above = above;
        account->device_bytes.above = above ? &above->device_bytes : NULL;
        account->device_bytes.limit = device_bytes_max;
        account->device_bytes.field = field;
}

uint64_t hr_account_held(const struct hr_account *account, hr_charge_kind kind) {
        return kind == HR_CHARGE_DEVICE_BYTES ? atomic_load(&account->device_bytes.held)
                                              : account->held[kind];
}

void hr_account_change(struct hr_account *principal, hr_charge_kind kind, uint64_t from,
                       uint64_t to) {
        for (; principal; principal = principal->above) {
                HR_ASSERT(principal->held[kind] >= from);
                principal->held[kind] = principal->held[kind] - from + to;
        }
}
