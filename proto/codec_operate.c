/*
 * The messages of who runs the daemon, from the lists of operate.h: each list writes the generated
 * struct, reads it back, and checks its texts. A list that names a field which the contract does
 * not have, or of another length, does not compile.
 */
#include "proto/operate.h"

#include "proto/codec_priv.h"

#include "headrace.pb.h"

#define NUMBER_OUT(type, name) wire->name = from->name;
#define TEXT_OUT(name, bytes)                                                                      \
        _Static_assert(sizeof wire->name == (bytes), "the cap of " #name);                         \
        hr_codec_text_copy(wire->name, sizeof wire->name, from->name);
#define NUMBER_IN(type, name) to->name = wire->name;
#define TEXT_IN(name, bytes)                                                                       \
        good &= hr_codec_array_is_valid(wire->name, sizeof wire->name);                            \
        memcpy(to->name, wire->name, bytes);

/* put: fills the generated struct. take: fills ours; false where a text is none. */
#define SHAPE(name, Message, LIST)                                                                 \
        static void name##_put(const struct hr_wire_##name *from, headrace_v1_##Message *wire) {   \
                LIST(NUMBER_OUT, TEXT_OUT)                                                         \
        }                                                                                          \
        static bool name##_take(const headrace_v1_##Message *wire, struct hr_wire_##name *to) {    \
                bool good = true;                                                                  \
                                                                                                   \
                LIST(NUMBER_IN, TEXT_IN)                                                           \
                return good;                                                                       \
        }

static hr_status text_fail(struct hr_diag *diag) {
        return hr_fail_reason(diag, HR_E_INVALID, "UTF8", "a text is no valid UTF-8");
}

/* A message that is such a struct and nothing else. */
#define MESSAGE_ENCODE(name, Message)                                                              \
        hr_status hr_wire_##name##_encode(const struct hr_wire_##name *from, uint8_t *buffer,      \
                                          size_t capacity, struct hr_diag *diag,                   \
                                          size_t *ret_bytes) {                                     \
                headrace_v1_##Message wire = headrace_v1_##Message##_init_zero;                    \
                                                                                                   \
                name##_put(from, &wire);                                                           \
                return hr_codec_encode(headrace_v1_##Message##_fields, &wire, buffer, capacity,    \
                                       diag, ret_bytes);                                           \
        }
#define MESSAGE(name, Message)                                                                     \
        MESSAGE_ENCODE(name, Message)                                                              \
        hr_status hr_wire_##name##_decode(struct hr_wire_span message, struct hr_diag *diag,       \
                                          struct hr_wire_##name *ret_to) {                         \
                headrace_v1_##Message wire = headrace_v1_##Message##_init_zero;                    \
                struct hr_wire_##name to = {0};                                                    \
                                                                                                   \
                HR_TRY(hr_codec_decode(message, headrace_v1_##Message##_fields, &wire, diag));     \
                if (!name##_take(&wire, &to))                                                      \
                        return text_fail(diag);                                                    \
                *ret_to = to;                                                                      \
                return HR_OK;                                                                      \
        }
/* The same without a text in it. */
#define MESSAGE_OF_NUMBERS(name, Message)                                                          \
        MESSAGE_ENCODE(name, Message)                                                              \
        hr_status hr_wire_##name##_decode(struct hr_wire_span message, struct hr_diag *diag,       \
                                          struct hr_wire_##name *ret_to) {                         \
                headrace_v1_##Message wire = headrace_v1_##Message##_init_zero;                    \
                                                                                                   \
                HR_TRY(hr_codec_decode(message, headrace_v1_##Message##_fields, &wire, diag));     \
                (void) name##_take(&wire, ret_to);                                                 \
                return HR_OK;                                                                      \
        }

/* Rows of a list, each such a struct. */
#define LIST_ROWS(name, Message)                                                                   \
        static bool name##_put_row(pb_ostream_t *stream, const void *data, uint32_t index) {       \
                const struct hr_wire_##name *rows = data;                                          \
                headrace_v1_##Message wire = headrace_v1_##Message##_init_zero;                    \
                                                                                                   \
                name##_put(&rows[index], &wire);                                                   \
                return pb_encode_submessage(stream, headrace_v1_##Message##_fields, &wire);        \
        }                                                                                          \
        static bool name##_take_row(pb_istream_t *stream, const pb_field_t *field, void **arg) {   \
                headrace_v1_##Message wire = headrace_v1_##Message##_init_zero;                    \
                struct hr_wire_##name *row;                                                        \
                                                                                                   \
                (void) field;                                                                      \
                if (!pb_decode(stream, headrace_v1_##Message##_fields, &wire))                     \
                        return false;                                                              \
                row = hr_codec_list_extend(*arg, 1, sizeof *row);                                  \
                if (!row || !name##_take(&wire, row))                                              \
                        return hr_codec_refuse(stream, "a text is no UTF-8");                      \
                return true;                                                                       \
        }

/* A message that is a list of such rows, in field `rows_field`. */
#define LIST_MESSAGE(name, List, rows_field)                                                       \
        hr_status hr_wire_##name##s_encode(const struct hr_wire_##name *rows, uint32_t count,      \
                                           uint8_t *buffer, size_t capacity, struct hr_diag *diag, \
                                           size_t *ret_bytes) {                                    \
                struct hr_codec_items items = {rows, count, name##_put_row};                       \
                headrace_v1_##List wire = {.rows_field = hr_codec_put_items(&items)};              \
                                                                                                   \
                return hr_codec_encode(headrace_v1_##List##_fields, &wire, buffer, capacity, diag, \
                                       ret_bytes);                                                 \
        }                                                                                          \
        hr_status hr_wire_##name##s_decode(struct hr_wire_span message, struct hr_arena *arena,    \
                                           struct hr_diag *diag,                                   \
                                           const struct hr_wire_##name **ret_rows,                 \
                                           uint32_t *ret_count) {                                  \
                struct hr_codec_list list = {.arena = arena};                                      \
                headrace_v1_##List wire = headrace_v1_##List##_init_zero;                          \
                struct hr_diag local = {0};                                                        \
                hr_status status;                                                                  \
                                                                                                   \
                diag = diag ? diag : &local;                                                       \
                wire.rows_field =                                                                  \
                        (pb_callback_t){.funcs.decode = name##_take_row, .arg = &list};            \
                status = hr_codec_decode(message, headrace_v1_##List##_fields, &wire, diag);       \
                HR_TRY(hr_codec_list_check(&list, status, diag));                                  \
                *ret_rows = list.items;                                                            \
                *ret_count = list.count;                                                           \
                return HR_OK;                                                                      \
        }

/* ---- answers --------------------------------------------------------------------------------- */

#define STATUS_FIELDS(NUMBER, TEXT)                                                                \
        HR_WIRE_STATUS_LIST(NUMBER, TEXT)                                                          \
        STATUS_BOOT_##NUMBER
#define STATUS_BOOT_NUMBER_OUT memcpy(wire->boot_id, from->boot_id, sizeof wire->boot_id);
#define STATUS_BOOT_NUMBER_IN memcpy(to->boot_id, wire->boot_id, sizeof to->boot_id);

SHAPE(status, StatusReply, STATUS_FIELDS)
MESSAGE(status, StatusReply)
SHAPE(reload, ReloadReply, HR_WIRE_RELOAD_LIST)
MESSAGE(reload, ReloadReply)
SHAPE(drained, DrainReply, HR_WIRE_DRAIN_LIST)
MESSAGE_OF_NUMBERS(drained, DrainReply)
SHAPE(evict, Evict, HR_WIRE_EVICT_LIST)
MESSAGE(evict, Evict)
SHAPE(evicted, EvictReply, HR_WIRE_EVICTED_LIST)
MESSAGE_OF_NUMBERS(evicted, EvictReply)

#define EXPLAIN_FIELDS(NUMBER, TEXT)                                                               \
        NUMBER(uint64_t, handle) NUMBER(uint64_t, session) NUMBER(uint32_t, graph)
SHAPE(explain, Explain, EXPLAIN_FIELDS)
MESSAGE_OF_NUMBERS(explain, Explain)

static void page_put(const struct hr_wire_page *from, headrace_v1_Plans *wire) {
        wire->after_session = from->first;
        wire->after_graph = from->second;
}

static bool page_take(const headrace_v1_Plans *wire, struct hr_wire_page *to) {
        *to = (struct hr_wire_page){wire->after_session, wire->after_graph};
        return true;
}
MESSAGE_OF_NUMBERS(page, Plans)

/* ---- health ---------------------------------------------------------------------------------- */

SHAPE(device_health, DeviceHealth, HR_WIRE_DEVICE_HEALTH_LIST)
LIST_ROWS(device_health, DeviceHealth)

hr_status hr_wire_health_encode(const struct hr_wire_health *health, uint8_t *buffer,
                                size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items items = {health->devices, health->device_count,
                                       device_health_put_row};
        headrace_v1_HealthReply wire = {
                .live = health->live,
                .ready = health->ready,
                .degraded = health->degraded,
                .devices = hr_codec_put_items(&items),
        };

        hr_codec_text_copy(wire.words, sizeof wire.words, health->words);
        return hr_codec_encode(headrace_v1_HealthReply_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_health_decode(struct hr_wire_span message, struct hr_arena *arena,
                                struct hr_diag *diag, struct hr_wire_health *ret_health) {
        struct hr_codec_list list = {.arena = arena};
        headrace_v1_HealthReply wire = headrace_v1_HealthReply_init_zero;
        struct hr_diag local = {0};
        hr_status status;

        diag = diag ? diag : &local;
        wire.devices =
                (pb_callback_t){.funcs.decode = device_health_take_row, .arg = &list};
        status = hr_codec_decode(message, headrace_v1_HealthReply_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&list, status, diag));
        HR_TRY(hr_codec_text_check(wire.words, sizeof wire.words, "words", diag));
        *ret_health = (struct hr_wire_health){
                .live = wire.live,
                .ready = wire.ready,
                .degraded = wire.degraded,
                .devices = list.items,
                .device_count = list.count,
        };
        memcpy(ret_health->words, wire.words, sizeof ret_health->words);
        return HR_OK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

SHAPE(session, SessionInfo, HR_WIRE_SESSION_LIST)
LIST_ROWS(session, SessionInfo)
LIST_MESSAGE(session, SessionList, sessions)
SHAPE(plan, PlanInfo, HR_WIRE_PLAN_LIST)
LIST_ROWS(plan, PlanInfo)
LIST_MESSAGE(plan, PlanList, plans)

static void quota_put(const struct hr_wire_quota *from, headrace_v1_PrincipalQuota *wire) {
        HR_ASSERT(from->item_count <= HR_ARRAY_LENGTH(wire->items));
        hr_codec_text_copy(wire->principal, sizeof wire->principal, from->principal);
        hr_codec_text_copy(wire->permissions, sizeof wire->permissions, from->permissions);
        wire->weight = from->weight;
        wire->items_count = (pb_size_t) from->item_count;
        for (uint32_t i = 0; i < from->item_count; i++) {
                hr_codec_text_copy(wire->items[i].what, sizeof wire->items[i].what,
                                   from->items[i].what);
                wire->items[i].held = from->items[i].held;
                wire->items[i].limit = from->items[i].limit;
        }
}

static bool quota_take(const headrace_v1_PrincipalQuota *wire, struct hr_wire_quota *to) {
        bool good = hr_codec_array_is_valid(wire->principal, sizeof wire->principal);

        good &= hr_codec_array_is_valid(wire->permissions, sizeof wire->permissions);
        *to = (struct hr_wire_quota){.weight = wire->weight, .item_count = wire->items_count};
        memcpy(to->principal, wire->principal, sizeof to->principal);
        memcpy(to->permissions, wire->permissions, sizeof to->permissions);
        for (uint32_t i = 0; i < to->item_count; i++) {
                good &= hr_codec_array_is_valid(wire->items[i].what, sizeof wire->items[i].what);
                memcpy(to->items[i].what, wire->items[i].what, sizeof to->items[i].what);
                to->items[i].held = wire->items[i].held;
                to->items[i].limit = wire->items[i].limit;
        }
        return good;
}
LIST_ROWS(quota, PrincipalQuota)
LIST_MESSAGE(quota, QuotaList, principals)
