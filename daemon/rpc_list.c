/*
 * SESSIONS, PLANS, QUOTAS: what there is, page by page, from what the loop has.
 *
 * A page has a bounded number of rows, and looks at a bounded number of entries to find them, so
 * that the loop goes on in between; `next` of a reply is where the following page begins, 0 at the
 * end. Sessions are numbered in the order in which they began, graphs by the slot of their handle
 * (which is not the handle), principals by their id: what comes or goes between two pages shifts
 * nothing. Who lacks the right "admin" sees its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "daemon/bind.h"
#include "daemon/rpc.h"
#include "proto/operate.h"

#define ROWS_MAX 128U      /* of sessions and graphs */
#define PRINCIPALS_MAX 16U /* each with all kinds of charges */
#define LOOKS_MAX 16384U   /* handles that a page looks at */

/* A name that the wire cuts to its cap. */
#define PUT_TEXT(to, from) (void) snprintf((to), sizeof(to), "%s", (from) ? (from) : "")

typedef hr_status (*encode_fn)(const void *rows, uint32_t count, uint8_t *buffer, size_t capacity,
                               struct hr_diag *diag, size_t *ret_bytes);

static hr_status page_begin(struct hr_request *request, struct hr_wire_span message,
                            const struct hr_frame_header *header, struct hr_diag *diag) {
        struct hr_wire_page *page = hr_arena_alloc(&request->arena, sizeof *page, 8);

        (void) header;
        if (!page)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        request->context = page;
        return hr_wire_page_decode(message, diag, page);
}

static hr_status page_reply(struct hr_request *request, const struct hr_wire_page *next,
                            encode_fn encode, const void *rows, uint32_t count,
                            struct hr_diag *diag) {
        uint8_t message[32];
        size_t bytes = 0;

        HR_TRY(encode(rows, count, NULL, 0, diag, &request->reply_bytes));
        request->reply_memory = malloc(request->reply_bytes + 1);
        if (!request->reply_memory)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a list");
        HR_TRY(encode(rows, count, request->reply_memory, request->reply_bytes, diag,
                      &request->reply_bytes));
        HR_TRY(hr_wire_page_encode(next, message, sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, request->reply_memory, request->reply_bytes);
        return HR_OK;
}

static void *rows_new(struct hr_request *request, uint32_t count, size_t width,
                      struct hr_diag *diag) {
        void *rows = hr_arena_alloc(&request->arena, (uint64_t) count * width, 8);

        if (!rows)
                (void) hr_fail(diag, HR_E_EXHAUSTED, "no memory for a list");
        return rows;
}

static bool is_shown(const struct hr_request *request, const struct hr_session *session) {
        return !session->closed &&
               (hr_request_is_whole(request) || session->principal == request->session->principal);
}

/* ---- sessions -------------------------------------------------------------------------------- */

static void session_fill(const struct hr_session *session, struct hr_wire_session *row) {
        const struct hr_account *account = &session->account;
        uint64_t now_ns = hr_clock_now_ns();

        *row = (struct hr_wire_session){
                .number = session->number,
                .closing_ms = session->closing_ns > now_ns
                                      ? (session->closing_ns - now_ns) / HR_NS_PER_MS + 1
                                      : 0,
                .runs = hr_account_held(account, HR_CHARGE_RUNS),
                .graphs = hr_account_held(account, HR_CHARGE_GRAPHS),
                .states = hr_account_held(account, HR_CHARGE_STATES),
                .weights = hr_account_held(account, HR_CHARGE_WEIGHTS),
                .device_bytes = hr_account_held(account, HR_CHARGE_DEVICE_BYTES),
                .state_bytes = hr_account_held(account, HR_CHARGE_STATE_BYTES),
                .weight_bytes = hr_account_held(account, HR_CHARGE_WEIGHT_BYTES),
                .buffer_bytes = hr_account_held(account, HR_CHARGE_BUFFER_BYTES),
        };
        PUT_TEXT(row->principal, session->principal->name);
        PUT_TEXT(row->name, session->name);
        PUT_TEXT(row->client, session->client);
        HR_LIST_FOR_EACH(link, &session->conns)
        row->connections++;
}

static hr_status sessions_encode(const void *rows, uint32_t count, uint8_t *buffer,
                                 size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        return hr_wire_sessions_encode(rows, count, buffer, capacity, diag, ret_bytes);
}

static hr_status sessions_start(struct hr_request *request, struct hr_diag *diag) {
        const struct hr_wire_page *after = request->context;
        struct hr_wire_session *rows = rows_new(request, ROWS_MAX, sizeof *rows, diag);
        struct hr_wire_page next = {0};
        uint32_t count = 0;

        if (!rows)
                return HR_E_EXHAUSTED;
        HR_LIST_FOR_EACH(link, &request->server->sessions) {
                const struct hr_session *session = HR_CONTAINER_OF(link, struct hr_session, link);

                if (session->number <= after->first || !is_shown(request, session))
                        continue;
                if (count == ROWS_MAX) {
                        next.first = session->number - 1;
                        break;
                }
                session_fill(session, &rows[count++]);
        }
        return page_reply(request, &next, sessions_encode, rows, count, diag);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void plan_devices(const struct hr_server *server, const struct hr_plan_summary *plan,
                         struct hr_wire_plan *row) {
        size_t used = 0;

        for (uint32_t i = 0; i < plan->device_count && used + 1 < sizeof row->devices; i++)
                if (plan->device_splits[i] > 0) {
                        int more = snprintf(row->devices + used, sizeof row->devices - used, "%s%s",
                                            used > 0 ? "," : "", server->devices[i]->props.name);

                        used += (size_t) HR_MAX(more, 0);
                }
}

static void plan_fill(struct hr_session *session, uint32_t number,
                      const struct hr_graph_object *object, struct hr_wire_plan *row) {
        const struct hr_plan_summary plan = hr_plan_summary(object->plan);
        const struct hr_pipeline *pipeline = object->bound->bound.pipeline;
        const uint8_t *digest = hr_graph_entry_digest(object->entry);

        *row = (struct hr_wire_plan){
                .session = session->number,
                .graph = number,
                .nodes = hr_graph_entry_graph(object->entry)->node_count,
                .splits = plan.split_count,
                .n_copies = hr_pipeline_copies(pipeline),
                .fallback_nodes = plan.fallback_nodes,
                .copied_bytes = plan.copied_bytes,
                .in_use = object->base.refs > 1,
                .expert_bytes = hr_pipeline_expert_bytes(pipeline),
        };
        for (uint32_t i = 0; i < plan.device_count; i++)
                row->own_bytes += object->shares[i].own_bytes;
        for (size_t i = 0; i < 8; i++)
                (void) snprintf(row->digest + 2 * i, 3, "%02x", digest[i]);
        PUT_TEXT(row->principal, session->principal->name);
        PUT_TEXT(row->origin, hr_plan_origin_name(object->origin));
        plan_devices(session->server, &plan, row);
}

struct plan_page {
        struct hr_wire_plan *rows; /* ROWS_MAX of them */
        uint32_t count, looks;
};

/* Graphs of one session from slot `at` on. False: the page is over, and *ret_at has not been looked
 * at. */
static bool session_plans(struct hr_session *session, uint32_t at, struct plan_page *page,
                          uint32_t *ret_at) {
        for (uint32_t i = at; i < session->handles.slot_count; i++) {
                const struct hr_handle_slot *slot = &session->handles.slots[i];

                if (page->count == ROWS_MAX || ++page->looks > LOOKS_MAX) {
                        *ret_at = i;
                        return false;
                }
                if (slot->generation != 0 && slot->object->kind == HR_OBJECT_GRAPH)
                        plan_fill(session, i + 1, hr_graph_object(slot->object),
                                  &page->rows[page->count++]);
        }
        return true;
}

static hr_status plans_encode(const void *rows, uint32_t count, uint8_t *buffer, size_t capacity,
                              struct hr_diag *diag, size_t *ret_bytes) {
        return hr_wire_plans_encode(rows, count, buffer, capacity, diag, ret_bytes);
}

/* A page begins behind graph `second` of session `first`, or with the next session. */
static hr_status plans_start(struct hr_request *request, struct hr_diag *diag) {
        const struct hr_wire_page *after = request->context;
        struct plan_page page = {.rows = rows_new(request, ROWS_MAX, sizeof *page.rows, diag)};
        struct hr_wire_page next = {0};

        if (!page.rows)
                return HR_E_EXHAUSTED;
        HR_LIST_FOR_EACH(link, &request->server->sessions) {
                struct hr_session *session = HR_CONTAINER_OF(link, struct hr_session, link);
                bool goes_on = session->number == after->first && after->second > 0;
                uint32_t at = goes_on ? after->second : 0;

                if ((session->number <= after->first && !goes_on) || !is_shown(request, session) ||
                    session_plans(session, at, &page, &at))
                        continue;
                next = at > 0 ? (struct hr_wire_page){session->number, at}
                              : (struct hr_wire_page){session->number - 1, 0};
                break;
        }
        return page_reply(request, &next, plans_encode, page.rows, page.count, diag);
}

/* ---- quotas ---------------------------------------------------------------------------------- */

static void quota_fill(const struct hr_server *server, const struct hr_principal *principal,
                       struct hr_wire_quota *row) {
        const uint64_t permissions = principal->permissions;

        _Static_assert((int) HR_CHARGE_KINDS <= (int) HR_WIRE_QUOTA_ITEMS_MAX, "all kinds fit");
        *row = (struct hr_wire_quota){
                .weight = (uint32_t) atomic_load_explicit(&principal->share.weight,
                                                          memory_order_relaxed),
                .item_count = HR_CHARGE_KINDS,
        };
        PUT_TEXT(row->principal, principal->name);
        (void) snprintf(row->permissions, sizeof row->permissions, "%s%s%s",
                        permissions & HR_PERMIT_RUN ? "run," : "",
                        permissions & HR_PERMIT_LOAD ? "load," : "",
                        permissions & HR_PERMIT_ADMIN ? "admin," : "");
        if (row->permissions[0])
                row->permissions[strlen(row->permissions) - 1] = '\0';
        for (uint32_t i = 0; i < row->item_count; i++) {
                hr_charge_kind kind = (hr_charge_kind) i;

                PUT_TEXT(row->items[i].what, hr_charge_name(kind));
                row->items[i].held = hr_account_held(&principal->account, kind);
                row->items[i].limit = hr_charge_limit(&server->config->limits, kind);
        }
}

/* The first principals whose id + 1 is above `after`, in the order of their ids; one more than a
 * page has, when there are so many. */
static uint32_t principals_find(const struct hr_request *request, uint64_t after,
                                const struct hr_principal *found[PRINCIPALS_MAX + 1]) {
        const struct hr_principal *principal = NULL;
        uint32_t count = 0;

        while ((principal = hr_principals_next(request->server->principals, principal))) {
                uint32_t at = count;

                if ((uint64_t) principal->id + 1 <= after ||
                    (!hr_request_is_whole(request) && principal != request->session->principal))
                        continue;
                while (at > 0 && found[at - 1]->id > principal->id)
                        at--;
                if (at == PRINCIPALS_MAX + 1)
                        continue;
                count = HR_MIN(count + 1, PRINCIPALS_MAX + 1);
                memmove(&found[at + 1], &found[at], (count - 1 - at) * sizeof(found[0]));
                found[at] = principal;
        }
        return count;
}

static hr_status quotas_encode(const void *rows, uint32_t count, uint8_t *buffer, size_t capacity,
                               struct hr_diag *diag, size_t *ret_bytes) {
        return hr_wire_quotas_encode(rows, count, buffer, capacity, diag, ret_bytes);
}

static hr_status quotas_start(struct hr_request *request, struct hr_diag *diag) {
        const struct hr_wire_page *after = request->context;
        const struct hr_principal *found[PRINCIPALS_MAX + 1];
        struct hr_wire_quota *rows = rows_new(request, PRINCIPALS_MAX, sizeof *rows, diag);
        uint32_t count = principals_find(request, after->first, found);
        struct hr_wire_page next = {0};

        if (!rows)
                return HR_E_EXHAUSTED;
        if (count > PRINCIPALS_MAX) {
                count = PRINCIPALS_MAX;
                next.first = (uint64_t) found[count - 1]->id + 1;
        }
        for (uint32_t i = 0; i < count; i++)
                quota_fill(request->server, found[i], &rows[i]);
        return page_reply(request, &next, quotas_encode, rows, count, diag);
}

const struct hr_method hr_list_methods[] = {
        {.type = HR_FRAME_SESSIONS,
         .name = "SESSIONS",
         .needs_session = true,
         .in_drain = true,
         .begin = page_begin,
         .start = sessions_start},
        {.type = HR_FRAME_PLANS,
         .name = "PLANS",
         .needs_session = true,
         .in_drain = true,
         .begin = page_begin,
         .start = plans_start},
        {.type = HR_FRAME_QUOTAS,
         .name = "QUOTAS",
         .needs_session = true,
         .in_drain = true,
         .begin = page_begin,
         .start = quotas_start},
        {0},
};
