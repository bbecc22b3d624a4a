/*
 * The list of holdings. There are as many as uploads and uploaded sets in use, so it is searched.
 *
 * An upload is the engine's to abandon: a holding that is dropped while it is received sends a job
 * there. Its charge is returned at once: what is charged from then on reaches the engine later, and
 * finds the memory free. One that is settled goes with its last handle,
 * whose closing has given the set back before.
 */
#include "daemon/holding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "daemon/evict.h"
#include "daemon/server.h"

static void holding_discharge(struct hr_holding *holding) {
        struct hr_account *account = &holding->principal->account;

        hr_account_discharge(NULL, account, HR_CHARGE_UPLOAD_BYTES, holding->bytes);
        hr_account_discharge(NULL, account, HR_CHARGE_DESCRIPTORS, holding->descriptors);
        holding->bytes = holding->descriptors = 0;
}

static void holding_free(struct hr_holding *holding) {
        holding_discharge(holding);
        hr_list_remove(&holding->link);
        (void) hr_upload_unref(holding->upload);
        holding->principal = hr_principal_unref(holding->principal);
        free(holding);
}

static hr_status holding_new(struct hr_server *server, struct hr_principal *principal,
                             uint64_t bytes, struct hr_diag *diag,
                             struct hr_holding **ret_holding) {
        const struct hr_limits *limits = &server->config->limits;
        struct hr_holding *holding;
        hr_status status;

        HR_TRY(hr_account_charge(NULL, &principal->account, limits, HR_CHARGE_UPLOAD_BYTES, bytes,
                                 0, diag));
        status = hr_account_charge(NULL, &principal->account, limits, HR_CHARGE_DESCRIPTORS, 1, 0,
                                   diag);
        holding = status == HR_OK ? calloc(1, sizeof *holding) : NULL;
        if (!holding) {
                hr_account_discharge(NULL, &principal->account, HR_CHARGE_UPLOAD_BYTES, bytes);
                if (status == HR_OK)
                        hr_account_discharge(NULL, &principal->account, HR_CHARGE_DESCRIPTORS, 1);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for an upload");
        }
        holding->server = server;
        holding->principal = hr_principal_ref(principal);
        holding->refs = 1;
        holding->bytes = bytes;
        holding->descriptors = 1;
        hr_list_init(&holding->streams);
        hr_list_append(&server->holdings, &holding->link);
        *ret_holding = holding;
        return HR_OK;
}

static bool is_receiving(const struct hr_holding *holding) {
        return holding->set_number == 0 && holding->is_kept && !holding->is_unwanted;
}

/* Whether an upload of these contents can use what the holding has been charged for. */
static bool serves(const struct hr_holding *holding, const struct hr_holding_request *request) {
        return request->digest && holding->has_digest && holding->principal == request->principal &&
               holding->bytes == request->bytes && holding->is_own == request->is_own &&
               hr_digest_equal(holding->digest, request->digest) &&
               (holding->set_number || (request->is_kept && is_receiving(holding) &&
                                 strcmp(holding->name, request->name) == 0));
}

/* Those of the principal that nobody waits for make way for what it wants now. */
static void make_way(struct hr_server *server, const struct hr_principal *principal) {
        HR_LIST_FOR_EACH(link, &server->holdings) {
                struct hr_holding *holding = HR_CONTAINER_OF(link, struct hr_holding, link);

                if (holding->principal == principal && holding->expires_ns != 0)
                        holding->expires_ns = 1;
        }
        (void) hr_holdings_expire(server, hr_clock_now_ns(), false);
}

static hr_status holding_make(struct hr_server *server, const struct hr_holding_request *request,
                              struct hr_diag *diag, struct hr_holding **ret_holding) {
        struct hr_diag first = {0};
        struct hr_holding *holding = NULL;

        if (holding_new(server, request->principal, request->bytes, &first, &holding) != HR_OK) {
                make_way(server, request->principal);
                HR_TRY(holding_new(server, request->principal, request->bytes, diag, &holding));
        }
        holding->is_kept = request->is_kept && request->digest;
        holding->is_own = request->is_own;
        holding->has_digest = request->digest != NULL;
        if (request->digest)
                memcpy(holding->digest, request->digest, HR_DIGEST_BYTES);
        (void) snprintf(holding->name, sizeof holding->name, "%s", request->name);
        *ret_holding = holding;
        return HR_OK;
}

hr_status hr_holding_take(struct hr_server *server, const struct hr_holding_request *request,
                          struct hr_diag *diag, struct hr_holding **ret_holding) {
        HR_LIST_FOR_EACH(link, &server->holdings) {
                struct hr_holding *holding = HR_CONTAINER_OF(link, struct hr_holding, link);

                if (serves(holding, request)) {
                        *ret_holding = hr_holding_ref(holding);
                        return HR_OK;
                }
        }
        return holding_make(server, request, diag, ret_holding);
}

hr_status hr_holding_part(const struct hr_holding_request *request, struct hr_upload *upload,
                          struct hr_diag *diag, struct hr_holding **holding) {
        struct hr_server *server = (*holding)->server;
        struct hr_holding *of_upload = NULL;

        HR_LIST_FOR_EACH(link, &server->holdings) {
                struct hr_holding *other = HR_CONTAINER_OF(link, struct hr_holding, link);

                if (upload && other->upload == upload && !other->is_unwanted) {
                        of_upload = hr_holding_ref(other);
                        break;
                }
        }
        if (!of_upload) {
                HR_TRY(holding_make(server, request, diag, &of_upload));
                of_upload->upload = upload ? hr_upload_ref(upload) : NULL;
        }
        (void) hr_holding_unref(*holding);
        *holding = of_upload;
        return HR_OK;
}

static struct hr_holding *find_settled(const struct hr_server *server,
                                       const struct hr_principal *principal,
                                       const struct hr_weights *set) {
        HR_LIST_FOR_EACH(link, &server->holdings) {
                struct hr_holding *holding = HR_CONTAINER_OF(link, struct hr_holding, link);

                if (holding->set_number == set->number && holding->principal == principal)
                        return holding;
        }
        return NULL;
}

hr_status hr_holding_of_set(struct hr_server *server, struct hr_principal *principal,
                            const struct hr_weights *set, struct hr_diag *diag,
                            struct hr_holding **ret_holding) {
        struct hr_holding *holding = find_settled(server, principal, set);

        if (holding) {
                *ret_holding = hr_holding_ref(holding);
                return HR_OK;
        }
        HR_TRY(holding_new(server, principal, set->contents_bytes, diag, &holding));
        holding->is_own = set->owner != 0;
        *ret_holding = hr_holding_settle(holding, set);
        return HR_OK;
}

/* Another that is settled for the same contents of the same kind: what is in several places is in
 * host memory once at most. */
static struct hr_holding *find_same(const struct hr_holding *holding) {
        HR_LIST_FOR_EACH(link, &holding->server->holdings) {
                struct hr_holding *other = HR_CONTAINER_OF(link, struct hr_holding, link);

                if (other != holding && other->set_number != 0 && other->has_digest &&
                    holding->has_digest && other->principal == holding->principal &&
                    other->is_own == holding->is_own && other->bytes == holding->bytes &&
                    hr_digest_equal(other->digest, holding->digest))
                        return other;
        }
        return NULL;
}

struct hr_holding *hr_holding_settle(struct hr_holding *holding, const struct hr_weights *set) {
        struct hr_holding *settled;

        if (holding->set_number == set->number)
                return holding;
        settled = find_settled(holding->server, holding->principal, set);
        if (!settled && holding->set_number == 0)
                settled = find_same(holding);
        if (settled) {
                (void) hr_holding_ref(settled);
                holding->is_unwanted = true;
                (void) hr_holding_unref(holding);
                return settled;
        }
        if (holding->set_number) { /* of the same contents under another name: it serves both */
                return holding;
        }
        holding->set_number = set->number;
        holding->has_digest = set->has_digest;
        memcpy(holding->digest, set->digest, HR_DIGEST_BYTES);
        holding->upload = hr_upload_unref(holding->upload);
        return holding;
}

const struct hr_holding *hr_holding_find(const struct hr_server *server,
                                         const struct hr_principal *principal,
                                         const uint8_t digest[HR_DIGEST_BYTES]) {
        HR_LIST_FOR_EACH(link, &server->holdings) {
                const struct hr_holding *holding = HR_CONTAINER_OF(link, struct hr_holding, link);

                /* One that is being dropped has given its upload to the engine. */
                if (holding->principal == principal && is_receiving(holding) && holding->upload &&
                    holding->has_digest && hr_digest_equal(holding->digest, digest))
                        return holding;
        }
        return NULL;
}

struct hr_holding *hr_holding_ref(struct hr_holding *holding) {
        holding->refs++;
        holding->expires_ns = 0;
        return holding;
}

/* Thread: engine. */
static void drop_work(struct hr_job *job) {
        struct hr_holding *holding = job->arg;

        hr_weights_upload_drop(hr_engine_store(holding->server->engine), holding->upload);
        holding->upload = hr_upload_unref(holding->upload);
        hr_engine_job_end(job);
}

static void drop_done(struct hr_job *job) {
        holding_free(job->arg);
}

static void holding_drop(struct hr_holding *holding) {
        holding->is_unwanted = true;
        holding->expires_ns = 0;
        if (!holding->upload) {
                holding_free(holding);
                return;
        }
        holding_discharge(holding);
        holding->dropping = (struct hr_job){
                .kind = HR_JOB_WORK,
                .work = drop_work,
                .cancel = drop_work,
                .done = drop_done,
                .arg = holding,
        };
        hr_engine_post(holding->server->engine, &holding->dropping);
}

struct hr_holding *hr_holding_unref(struct hr_holding *holding) {
        const struct hr_server *server;

        if (!holding)
                return NULL;
        HR_ASSERT(holding->refs > 0);
        if (--holding->refs > 0)
                return NULL;
        server = holding->server;
        if (!is_receiving(holding) || !holding->upload || server->draining ||
            server->config->upload_grace_ns == 0) {
                holding_drop(holding);
                return NULL;
        }
        holding->expires_ns = hr_clock_now_ns() + server->config->upload_grace_ns;
        hr_server_tick(holding->server);
        return NULL;
}

bool hr_holdings_expire(struct hr_server *server, uint64_t now_ns, bool all) {
        bool left = false;

        HR_LIST_FOR_EACH(link, &server->holdings) {
                struct hr_holding *holding = HR_CONTAINER_OF(link, struct hr_holding, link);

                left |= holding->set_number == 0;
                if (holding->expires_ns != 0 &&
                    (all || holding->principal->is_revoked || now_ns >= holding->expires_ns))
                        holding_drop(holding);
        }
        return left;
}

void hr_holdings_count(const struct hr_server *server, struct hr_evicted_sum *ret_sum) {
        struct hr_evicted_sum sum = {0};

        HR_LIST_FOR_EACH(link, &server->holdings) {
                const struct hr_holding *holding = HR_CONTAINER_OF(link, struct hr_holding, link);
                bool waits = holding->expires_ns != 0;

                if (holding->set_number || holding->is_unwanted)
                        continue;
                sum.entries += waits;
                sum.bytes += waits ? holding->bytes : 0;
                sum.kept_entries += !waits;
                sum.kept_bytes += waits ? 0 : holding->bytes;
        }
        *ret_sum = sum;
}
