/*
 * What who runs the daemon asks and orders. Structs of the public header have the fields of the
 * wire's lists under the same names, so that one list copies each; what comes in pages is asked for
 * until there is no further one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/c/client_priv.h"
#include "proto/operate.h"

#define LIST_BYTES_MAX (64U << 20) /* of one page in memory: far more than any has */

#define COPY_NUMBER(type, name) to->name = from->name;
#define COPY_TEXT(name, bytes)                                                                     \
        _Static_assert(sizeof to->name == sizeof from->name, "one length of " #name);              \
        memcpy(to->name, from->name, bytes);

/* ---- one answer ------------------------------------------------------------------------------ */

/* Sends a message and waits. The caller frees the call. */
static enum headrace_status ask(struct headrace_client *client, uint8_t kind,
                                const uint8_t *message, size_t bytes, int64_t timeout_ms,
                                struct headrace_error *error, struct hr_call **ret_call,
                                struct hr_answer *ret_answer) {
        const struct hr_request request = {
                .kind = kind, .message = message, .message_bytes = bytes};

        return hr_client_call(client, &request, hr_client_deadline_of(client, timeout_ms),
                               error, ret_call, ret_answer);
}

enum headrace_status headrace_daemon_status(struct headrace_client *client, int64_t timeout_ms,
                                            struct headrace_error *error,
                                            struct headrace_daemon_status *ret_status) {
        struct headrace_daemon_status *to = ret_status;
        struct hr_wire_status found, *from = &found;
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status =
                ask(client, HR_FRAME_STATUS, NULL, 0, timeout_ms, error, &call, &answer);

        if (status != HEADRACE_OK)
                return status;
        if (hr_wire_status_decode(answer.message, &diag, &found) != HR_OK)
                status = hr_client_fail_answer(error, &diag);
        hr_call_free(call);
        if (status != HEADRACE_OK)
                return status;
        HR_WIRE_STATUS_LIST(COPY_NUMBER, COPY_TEXT)
        memcpy(to->boot_id, from->boot_id, sizeof to->boot_id);
        return HEADRACE_OK;
}

static enum headrace_status health_take(const struct hr_answer *answer, struct hr_arena *arena,
                                        struct headrace_error *error,
                                        struct headrace_health *ret_health,
                                        struct headrace_device_health **ret_devices,
                                        size_t *ret_count) {
        struct headrace_device_health *devices;
        struct hr_wire_health found;
        struct hr_diag diag = {0};

        if (hr_wire_health_decode(answer->message, arena, &diag, &found) != HR_OK)
                return hr_client_fail_answer(error, &diag);
        devices = calloc(found.device_count + (size_t) 1, sizeof *devices);
        if (!devices)
                return hr_client_fail_memory(error);
        for (uint32_t i = 0; i < found.device_count; i++) {
                const struct hr_wire_device_health *from = &found.devices[i];
                struct headrace_device_health *to = &devices[i];

                HR_WIRE_DEVICE_HEALTH_LIST(COPY_NUMBER, COPY_TEXT)
        }
        *ret_health = (struct headrace_health){
                .live = found.live, .ready = found.ready, .degraded = found.degraded};
        memcpy(ret_health->words, found.words, sizeof ret_health->words);
        *ret_devices = devices;
        *ret_count = found.device_count;
        return HEADRACE_OK;
}

enum headrace_status headrace_health(struct headrace_client *client, int64_t timeout_ms,
                                     struct headrace_error *error,
                                     struct headrace_health *ret_health,
                                     struct headrace_device_health **ret_devices,
                                     size_t *ret_count) {
        struct hr_answer answer;
        struct hr_arena arena;
        struct hr_call *call;
        enum headrace_status status =
                ask(client, HR_FRAME_HEALTH, NULL, 0, timeout_ms, error, &call, &answer);

        if (status != HEADRACE_OK)
                return status;
        hr_arena_init(&arena, LIST_BYTES_MAX);
        status = health_take(&answer, &arena, error, ret_health, ret_devices, ret_count);
        hr_arena_deinit(&arena);
        hr_call_free(call);
        return status;
}

enum headrace_status headrace_reload(struct headrace_client *client, int64_t timeout_ms,
                                     struct headrace_error *error,
                                     struct headrace_reloaded *ret_reloaded) {
        struct headrace_reloaded *to = ret_reloaded;
        struct hr_wire_reload found, *from = &found;
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status =
                ask(client, HR_FRAME_RELOAD, NULL, 0, timeout_ms, error, &call, &answer);

        if (status != HEADRACE_OK)
                return status;
        if (hr_wire_reload_decode(answer.message, &diag, &found) != HR_OK)
                status = hr_client_fail_answer(error, &diag);
        hr_call_free(call);
        if (status == HEADRACE_OK) {
                HR_WIRE_RELOAD_LIST(COPY_NUMBER, COPY_TEXT)
        }
        return status;
}

enum headrace_status headrace_drain(struct headrace_client *client, uint64_t limit_ms,
                                    int64_t timeout_ms, struct headrace_error *error,
                                    struct headrace_drain *ret_drain) {
        struct headrace_drain *to = ret_drain;
        struct hr_wire_drained found, *from = &found;
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        uint8_t message[16];
        size_t bytes = 0;
        enum headrace_status status;

        if (hr_wire_varint_encode(limit_ms, message, sizeof message, &diag, &bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = ask(client, HR_FRAME_DRAIN, message, bytes, timeout_ms, error, &call, &answer);
        if (status != HEADRACE_OK)
                return status;
        if (hr_wire_drained_decode(answer.message, &diag, &found) != HR_OK)
                status = hr_client_fail_answer(error, &diag);
        hr_call_free(call);
        if (status == HEADRACE_OK) {
                HR_WIRE_DRAIN_LIST(COPY_NUMBER, COPY_TEXT)
        }
        return status;
}

enum headrace_status headrace_evict(struct headrace_client *client, const char *what,
                                    const char *name, int64_t timeout_ms,
                                    struct headrace_error *error,
                                    struct headrace_evicted *ret_evicted) {
        struct headrace_evicted sum = {0};
        struct hr_wire_evict evict = {0};
        struct hr_wire_evicted found = {.more = true};
        struct hr_diag diag = {0};
        uint8_t message[sizeof evict + 16];
        size_t bytes = 0;

        if (strlen(what) >= sizeof evict.what || (name && strlen(name) >= sizeof evict.name))
                return hr_client_fail(error, HEADRACE_INVALID, "EVICT", "%.40s cannot be evicted",
                                      name ? name : what);
        (void) snprintf(evict.what, sizeof evict.what, "%s", what);
        (void) snprintf(evict.name, sizeof evict.name, "%s", name ? name : "");
        if (hr_wire_evict_encode(&evict, message, sizeof message, &diag, &bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        while (found.more) {
                struct hr_answer answer;
                struct hr_call *call;
                enum headrace_status status = ask(client, HR_FRAME_EVICT, message, bytes,
                                                  timeout_ms, error, &call, &answer);

                if (status != HEADRACE_OK)
                        return status;
                if (hr_wire_evicted_decode(answer.message, &diag, &found) != HR_OK)
                        status = hr_client_fail_answer(error, &diag);
                hr_call_free(call);
                if (status != HEADRACE_OK)
                        return status;
                sum.entries += found.entries;
                sum.bytes += found.bytes;
        }
        sum.kept_entries = found.kept_entries;
        sum.kept_bytes = found.kept_bytes;
        *ret_evicted = sum;
        return HEADRACE_OK;
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* What has been collected: `count` rows of `width` bytes. */
struct rows {
        char *memory;
        size_t count, width;
};

/* Room for `more` rows, zero-filled, behind those that there are; NULL without memory. */
static void *rows_extend(struct rows *rows, size_t more) {
        char *grown = reallocarray(rows->memory, rows->count + more + 1, rows->width);

        if (!grown)
                return NULL;
        rows->memory = grown;
        grown += rows->count * rows->width;
        memset(grown, 0, (more + 1) * rows->width);
        rows->count += more;
        return grown;
}

/* Appends the rows of a page. */
typedef hr_status (*page_fn)(struct hr_wire_span body, struct hr_arena *arena, struct hr_diag *diag,
                             struct rows *rows);

static enum headrace_status page_ask(struct headrace_client *client, uint8_t kind, page_fn take,
                                     int64_t timeout_ms, struct headrace_error *error,
                                     struct hr_wire_page *page, struct rows *rows) {
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_arena arena;
        struct hr_call *call;
        uint8_t message[32];
        size_t bytes = 0;
        enum headrace_status status;
        hr_status taken;

        if (hr_wire_page_encode(page, message, sizeof message, &diag, &bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = ask(client, kind, message, bytes, timeout_ms, error, &call, &answer);
        if (status != HEADRACE_OK)
                return status;
        hr_arena_init(&arena, LIST_BYTES_MAX);
        taken = take(answer.body, &arena, &diag, rows);
        if (taken == HR_OK)
                taken = hr_wire_page_decode(answer.message, &diag, page);
        if (taken != HR_OK)
                status = hr_client_fail_answer(error, &diag);
        hr_arena_deinit(&arena);
        hr_call_free(call);
        return status;
}

static enum headrace_status pages_ask(struct headrace_client *client, uint8_t kind, page_fn take,
                                      size_t width, int64_t timeout_ms,
                                      struct headrace_error *error, void **ret_rows,
                                      size_t *ret_count) {
        struct rows rows = {.width = width};
        struct hr_wire_page page = {0};

        do {
                const struct hr_wire_page before = page;
                enum headrace_status status =
                        page_ask(client, kind, take, timeout_ms, error, &page, &rows);

                if (status == HEADRACE_OK && (page.first != 0 || page.second != 0) &&
                    (page.first < before.first ||
                     (page.first == before.first && page.second <= before.second)))
                        status = hr_client_fail(error, HEADRACE_INTERNAL, "PROTOCOL",
                                                "the daemon's pages do not go on");
                if (status != HEADRACE_OK) {
                        free(rows.memory);
                        return status;
                }
        } while (page.first != 0 || page.second != 0);
        *ret_rows = rows.memory;
        *ret_count = rows.count;
        return HEADRACE_OK;
}

#define PAGE(name, Public, LIST)                                                                   \
        static hr_status name##s_take(struct hr_wire_span body, struct hr_arena *arena,            \
                                      struct hr_diag *diag, struct rows *rows) {                   \
                const struct hr_wire_##name *found;                                                \
                struct Public *list;                                                               \
                uint32_t count;                                                                    \
                                                                                                   \
                HR_TRY(hr_wire_##name##s_decode(body, arena, diag, &found, &count));               \
                list = rows_extend(rows, count);                                                   \
                if (!list)                                                                         \
                        return hr_fail(diag, HR_E_EXHAUSTED, "the client has no memory");          \
                for (uint32_t i = 0; i < count; i++) {                                             \
                        const struct hr_wire_##name *from = &found[i];                             \
                        struct Public *to = &list[i];                                              \
                                                                                                   \
                        LIST(COPY_NUMBER, COPY_TEXT)                                               \
                }                                                                                  \
                return HR_OK;                                                                      \
        }

#define QUOTA_LIST(NUMBER, TEXT)                                                                   \
        TEXT(principal, 64)                                                                        \
        TEXT(permissions, 32)                                                                      \
        NUMBER(uint32_t, weight)                                                                   \
        NUMBER(uint32_t, item_count)                                                               \
        for (uint32_t k = 0; k < from->item_count; k++) {                                          \
                memcpy(to->items[k].what, from->items[k].what, sizeof to->items[k].what);          \
                to->items[k].held = from->items[k].held;                                           \
                to->items[k].limit = from->items[k].limit;                                         \
        }

PAGE(session, headrace_session_info, HR_WIRE_SESSION_LIST)
PAGE(plan, headrace_plan_info, HR_WIRE_PLAN_LIST)
PAGE(quota, headrace_principal_quota, QUOTA_LIST)

#define ASK_PAGES(function, Public, KIND, take)                                                    \
        enum headrace_status function(struct headrace_client *client, int64_t timeout_ms,          \
                                      struct headrace_error *error, struct Public **ret_list,      \
                                      size_t *ret_count) {                                         \
                void *rows = NULL;                                                                 \
                enum headrace_status status =                                                      \
                        pages_ask(client, HR_FRAME_##KIND, take, sizeof **ret_list, timeout_ms,    \
                                  error, &rows, ret_count);                                        \
                                                                                                   \
                if (status == HEADRACE_OK)                                                         \
                        *ret_list = rows;                                                          \
                return status;                                                                     \
        }

ASK_PAGES(headrace_sessions, headrace_session_info, SESSIONS, sessions_take)
ASK_PAGES(headrace_plans, headrace_plan_info, PLANS, plans_take)
ASK_PAGES(headrace_quotas, headrace_principal_quota, QUOTAS, quotas_take)

/* ---- weight sets ----------------------------------------------------------------------------- */

enum headrace_status headrace_weight_sets(struct headrace_client *client, int64_t timeout_ms,
                                          struct headrace_error *error,
                                          struct headrace_weight_set **ret_sets,
                                          size_t *ret_count) {
        const struct hr_wire_set_info *found;
        struct headrace_weight_set *list = NULL;
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_arena arena;
        struct hr_call *call;
        uint32_t count = 0;
        enum headrace_status status =
                ask(client, HR_FRAME_WEIGHTS_LIST, NULL, 0, timeout_ms, error, &call, &answer);

        if (status != HEADRACE_OK)
                return status;
        hr_arena_init(&arena, LIST_BYTES_MAX);
        if (hr_wire_sets_decode(answer.body, &arena, &diag, &found, &count) != HR_OK)
                status = hr_client_fail_answer(error, &diag);
        else if (!(list = calloc(count + (size_t) 1, sizeof *list)))
                status = hr_client_fail_memory(error);
        for (uint32_t i = 0; list && i < count; i++) {
                (void) snprintf(list[i].name, sizeof list[i].name, "%s", found[i].name);
                (void) snprintf(list[i].source, sizeof list[i].source, "%s", found[i].source);
                list[i].handle = found[i].handle;
                list[i].tensors = found[i].tensors;
                list[i].bytes = found[i].bytes;
                list[i].users = found[i].users;
                list[i].has_digest = found[i].digest_bytes == sizeof list[i].digest;
                memcpy(list[i].digest, found[i].digest, sizeof list[i].digest);
        }
        hr_arena_deinit(&arena);
        hr_call_free(call);
        if (status != HEADRACE_OK)
                return status;
        *ret_sets = list;
        *ret_count = count;
        return HEADRACE_OK;
}
