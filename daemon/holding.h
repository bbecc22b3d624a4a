/*
 * What uploads make a principal hold.
 *
 * One holding stands for the contents of one upload, from the moment its bytes are charged to the
 * principal until the memory is free again:
 *
 *   receiving: requests refer to it, each with a stream; without any it waits for upload_grace (a
 *              connection may have broken), then it is dropped
 *   settled:   a set is ready; the handles of the principal's sessions refer to it. One holding per
 *              principal and set, however many handles there are
 *
 * Thread: loop.
 */
#pragma once

#include "daemon/engine.h"
#include "daemon/principal.h"
#include "daemon/upload.h"
#include "proto/codec.h"

struct hr_server;
struct hr_evicted_sum;

struct hr_holding {
        struct hr_list link; /* in the server's list */
        struct hr_server *server;
        struct hr_principal *principal; /* referenced */
        uint32_t refs;
        uint64_t bytes, descriptors; /* charged */
        bool is_kept;                /* others may find it, and it waits for them */
        bool is_unwanted;            /* not to be kept any more */
        bool is_own;                 /* of a set that only the principal finds */
        bool has_digest;
        uint8_t digest[HR_DIGEST_BYTES];
        char name[HR_WIRE_SET_NAME_BYTES];
        uint64_t set_number;          /* settled: hr_weights.number; 0 = not. May have gone */
        struct hr_upload *upload;     /* receiving: referenced; NULL before the store has made it */
        struct hr_list streams;       /* hr_upload_stream.link */
        uint64_t expires_ns;          /* 0 = somebody refers to it */
        struct hr_job dropping;
};

struct hr_holding_request {
        struct hr_principal *principal;
        const char *name;
        const uint8_t *digest; /* NULL: nobody else can find it */
        uint64_t bytes;
        bool is_kept;
        bool is_own; /* for a set that only the principal finds: other memory than everybody's */
};

/* Takes part in the principal's holding of that name and digest (of the digest, when it is
 * settled), or charges for a new one. HR_E_EXHAUSTED (reason LIMIT). A reference is the caller's.
 */
HR_NODISCARD hr_status hr_holding_take(struct hr_server *server,
                                       const struct hr_holding_request *request,
                                       struct hr_diag *diag, struct hr_holding **ret_holding);
/* The store has made an upload for a request whose holding is settled: what stands for contents
 * that are there does not pay for those that come. Puts the holding of that upload, charged for it,
 * in the place of *holding; HR_E_EXHAUSTED (reason LIMIT) leaves that as it is. upload: NULL for
 * contents that nobody sends, since they are in memory that was passed or on the disk. */
HR_NODISCARD hr_status hr_holding_part(const struct hr_holding_request *request,
                                       struct hr_upload *upload, struct hr_diag *diag,
                                       struct hr_holding **holding);
/* For a handle on a ready upload: the principal's holding of that set, or a new one. HR_E_EXHAUSTED
 * (reason LIMIT). */
HR_NODISCARD hr_status hr_holding_of_set(struct hr_server *server, struct hr_principal *principal,
                                         const struct hr_weights *set, struct hr_diag *diag,
                                         struct hr_holding **ret_holding);
/* The upload of a holding has become that set: takes the caller's reference and returns one to the
 * holding that stands for the set. */
struct hr_holding *hr_holding_settle(struct hr_holding *holding, const struct hr_weights *set);
/* The principal's holding that receives these contents, or NULL. */
const struct hr_holding *hr_holding_find(const struct hr_server *server,
                                         const struct hr_principal *principal,
                                         const uint8_t digest[HR_DIGEST_BYTES]);
struct hr_holding *hr_holding_ref(struct hr_holding *holding);
/* NULL is a no-op. Returns NULL. */
struct hr_holding *hr_holding_unref(struct hr_holding *holding);
/* Those that nobody refers to while they wait for somebody to go on, and the others that are
 * received. */
void hr_holdings_count(const struct hr_server *server, struct hr_evicted_sum *ret_sum);
/* Drops those whose time has passed, or all that nobody refers to. True while any is left that is
 * received or being dropped. */
bool hr_holdings_expire(struct hr_server *server, uint64_t now_ns, bool all);
