/*
 * A daemon that ends, and the one that comes after it: connecting anew, and what is asked once
 * more.
 *
 * A request that was not answered is sent once more if twice is the same as once, within its
 * deadline. Whoever notices first connects (`renewal`), the others wait for that. The session is
 * the same where the daemon waits for it, else a new one, in which weight sets are found again and
 * have other numbers: callers keep theirs, which stand for the daemon's (`sets`).
 *
 * A channel that has ended, or that drains, lives as long as calls refer to it.
 */
#include "client/c/client_priv.h"
#include "client/c/transport/transport.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct hr_known_set {
        struct hr_known_set *next;
        uint64_t number, current; /* the caller's, the daemon's */
        uint8_t digest[HR_WIRE_DIGEST_BYTES];
        uint8_t *load; /* WeightsLoad that finds it again; owned */
        size_t load_bytes;
};

/* ---- options that outlive their call --------------------------------------------------------- */

static bool text_copy(const char **text) {
        if (!*text)
                return true;
        *text = strdup(*text);
        return *text != NULL;
}

enum headrace_status hr_client_keep_options(struct headrace_client *client, const char *address,
                                            const struct headrace_options *options,
                                            struct headrace_error *error) {
        struct headrace_options *kept = &client->options;
        const char **texts[] = {&kept->client_name,     &kept->session_name, &kept->tls_ca,
                                &kept->tls_certificate, &kept->tls_key,      &kept->tls_name};
        bool ok = true;

        if (options->no_resend || options->stream || !address)
                return HEADRACE_OK;
        *kept = *options;
        kept->credentials = kept->resume_token = NULL;
        kept->resume_token_bytes = 0;
        for (size_t i = 0; i < HR_ARRAY_LENGTH(texts); i++) /* none is left a stranger's */
                ok = text_copy(texts[i]) && ok;
        client->address = strdup(address);
        if (options->credentials_bytes > 0) {
                void *copy = malloc(options->credentials_bytes);

                if (copy)
                        memcpy(copy, options->credentials, options->credentials_bytes);
                kept->credentials = copy;
                ok &= copy != NULL;
        }
        return ok && client->address ? HEADRACE_OK : hr_client_fail_memory(error);
}

static void options_deinit(struct headrace_options *options) {
        const char *texts[] = {options->client_name,     options->session_name, options->tls_ca,
                               options->tls_certificate, options->tls_key,      options->tls_name};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(texts); i++)
                free((void *) (uintptr_t) texts[i]);
        if (options->credentials)
                explicit_bzero((void *) (uintptr_t) options->credentials,
                               options->credentials_bytes);
        free((void *) (uintptr_t) options->credentials);
}

static void set_free(struct hr_known_set *set) {
        free(set->load);
        free(set);
}

void hr_client_forget_all(struct headrace_client *client) {
        while (client->sets) {
                struct hr_known_set *set = client->sets;

                client->sets = set->next;
                set_free(set);
        }
        if (client->address)
                options_deinit(&client->options);
        free(client->address);
}

/* ---- weight sets ----------------------------------------------------------------------------- */

/* `lock` is held. */
static struct hr_known_set **set_at(struct headrace_client *client, uint64_t number) {
        struct hr_known_set **at = &client->sets;

        while (*at && (*at)->number != number)
                at = &(*at)->next;
        return at;
}

uint64_t hr_client_set_number(struct headrace_client *client, uint64_t number) {
        struct hr_known_set *set;

        (void) pthread_mutex_lock(&client->lock);
        set = *set_at(client, number);
        if (set)
                number = set->current;
        (void) pthread_mutex_unlock(&client->lock);
        return number;
}

uint64_t hr_client_remember_set(struct headrace_client *client, const struct hr_wire_set_info *info,
                                const uint8_t *load, size_t load_bytes) {
        struct hr_known_set *set = calloc(1, sizeof *set);
        uint8_t *copy = malloc(load_bytes + 1);
        struct hr_known_set *known;
        uint64_t number = info->handle;

        if (!client->address || !set || !copy || info->digest_bytes != sizeof set->digest) {
                free(set);
                free(copy);
                return number; /* it is not found again, then */
        }
        memcpy(copy, load, load_bytes);
        memcpy(set->digest, info->digest, sizeof set->digest);
        set->load = copy;
        set->load_bytes = load_bytes;
        (void) pthread_mutex_lock(&client->lock);
        for (known = client->sets; known && known->current != info->handle;)
                known = known->next;
        if (known) { /* the same set once more */
                number = known->number;
                set_free(set);
        } else {
                while (*set_at(client, number)) /* a number of another session's */
                        number++;
                set->number = number;
                set->current = info->handle;
                set->next = client->sets;
                client->sets = set;
        }
        (void) pthread_mutex_unlock(&client->lock);
        return number;
}

void hr_client_forget_set(struct headrace_client *client, uint64_t number) {
        struct hr_known_set **at, *set;

        (void) pthread_mutex_lock(&client->lock);
        at = set_at(client, number);
        set = *at;
        if (set) {
                *at = set->next;
                set_free(set);
        }
        (void) pthread_mutex_unlock(&client->lock);
}

/* Finds one set in the session of another channel. Who needs one that is not there is told. */
static void set_find(struct hr_channel *channel, struct hr_known_set *set, int64_t deadline_ns) {
        const struct hr_request request = {.kind = HR_FRAME_WEIGHTS_LOAD,
                                           .message = set->load,
                                           .message_bytes = set->load_bytes};
        struct hr_wire_set_info found;
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        bool already;

        if (hr_channel_call(channel, &request, deadline_ns, NULL, &call, &answer) != HEADRACE_OK)
                return;
        if (hr_wire_set_reply_decode(answer.message, true, &diag, &found, &already) == HR_OK &&
            found.digest_bytes == sizeof set->digest &&
            memcmp(found.digest, set->digest, sizeof set->digest) == 0)
                set->current = found.handle;
        hr_call_free(call);
}

/* The list is taken off the client meanwhile, so that no lock is held while the daemon is waited
 * for; who looks for a number then finds the old one, and is told NOT_FOUND. */
static void sets_find(struct headrace_client *client, struct hr_channel *channel,
                      int64_t deadline_ns) {
        struct hr_known_set *sets, **end;

        (void) pthread_mutex_lock(&client->lock);
        sets = client->sets;
        client->sets = NULL;
        (void) pthread_mutex_unlock(&client->lock);
        for (struct hr_known_set *set = sets; set; set = set->next)
                set_find(channel, set, deadline_ns);
        (void) pthread_mutex_lock(&client->lock);
        for (end = &sets; *end;)
                end = &(*end)->next;
        *end = client->sets;
        client->sets = sets;
        (void) pthread_mutex_unlock(&client->lock);
}

/* ---- connecting anew ------------------------------------------------------------------------- */

struct hr_channel *hr_client_channel(struct headrace_client *client) {
        struct hr_channel *channel;

        (void) pthread_mutex_lock(&client->lock);
        channel = hr_channel_ref(client->channel);
        (void) pthread_mutex_unlock(&client->lock);
        return channel;
}

/* Connects and says hello, with the session's token or in a new session. */
static enum headrace_status open_again(struct headrace_client *client, bool with_token,
                                       int64_t deadline_ns, struct headrace_error *error,
                                       struct hr_wire_hello_reply *ret_reply,
                                       struct hr_channel **ret_channel) {
        struct headrace_options options = client->options;
        struct hr_transport transport;
        struct hr_channel *channel;
        enum headrace_status status;

        if (with_token) {
                options.resume_token = client->token;
                options.resume_token_bytes = client->token_bytes;
        }
        status = hr_transport_open(client->address, &options, deadline_ns, error, &transport);
        if (status == HEADRACE_OK)
                status = hr_channel_new(&transport, error, &channel);
        if (status != HEADRACE_OK)
                return status;
        status = hr_client_say_hello(channel, &options, deadline_ns, error, ret_reply);
        if (status != HEADRACE_OK) {
                hr_channel_unref(channel);
                return status;
        }
        *ret_channel = channel;
        return HEADRACE_OK;
}

/* `renewal` is held. */
static bool reconnect(struct headrace_client *client, int64_t deadline_ns) {
        struct hr_wire_hello_reply reply;
        struct hr_channel *channel, *ended;
        struct headrace_error error;
        bool same = client->session_waits;
        enum headrace_status status = HEADRACE_NOT_FOUND;

        if (same)
                status = open_again(client, true, deadline_ns, &error, &reply, &channel);
        if (status == HEADRACE_NOT_FOUND) {
                same = false;
                status = open_again(client, false, deadline_ns, &error, &reply, &channel);
        }
        if (status != HEADRACE_OK)
                return false;
        if (!same)
                sets_find(client, channel, deadline_ns);
        (void) pthread_mutex_lock(&client->lock);
        client->session += !same;
        hr_channel_set_session(channel, client->session);
        ended = client->channel;
        client->channel = channel;
        client->token_bytes = reply.session_token_bytes;
        memcpy(client->token, reply.session_token, reply.session_token_bytes);
        (void) pthread_mutex_unlock(&client->lock);
        hr_channel_unref(ended);
        return true;
}

bool hr_client_reconnect(struct headrace_client *client, const struct hr_channel *ended,
                         int64_t deadline_ns) {
        int64_t limit_ns = HR_MIN(deadline_ns, hr_client_deadline(client->timeout_ms, 0));
        bool found;

        if (!client->address || !hr_client_lock(&client->renewal, limit_ns))
                return false;
        (void) pthread_mutex_lock(&client->lock);
        found = client->channel != ended; /* another thread has been here */
        (void) pthread_mutex_unlock(&client->lock);
        if (!found)
                found = reconnect(client, limit_ns);
        (void) pthread_mutex_unlock(&client->renewal);
        return found;
}

bool hr_client_has_ended(enum headrace_status status, const struct headrace_error *error) {
        return status == HEADRACE_UNAVAILABLE &&
               (strcmp(error->reason, "EOF") == 0 || strcmp(error->reason, "DRAINING") == 0);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Requests that change nothing, or (LOAD) only what their own session holds, and that name no
 * handle. */
static bool is_repeatable(uint8_t kind) {
        switch (kind) {
        case HR_FRAME_PING:
        case HR_FRAME_DEVICES:
        case HR_FRAME_OPS:
        case HR_FRAME_WEIGHTS_QUERY:
        case HR_FRAME_WEIGHTS_LOAD:
        case HR_FRAME_WEIGHTS_LIST:
        case HR_FRAME_STATUS:
        case HR_FRAME_STATS:
        case HR_FRAME_QUOTA:
        case HR_FRAME_TRACE:
        case HR_FRAME_HEALTH:
        case HR_FRAME_METRICS:
        case HR_FRAME_SESSIONS:
        case HR_FRAME_PLANS:
        case HR_FRAME_QUOTAS:
                return true;
        default:
                return false;
        }
}

enum headrace_status hr_client_call(struct headrace_client *client,
                                    const struct hr_request *request, int64_t deadline_ns,
                                    struct headrace_error *error, struct hr_call **ret_call,
                                    struct hr_answer *ret_answer) {
        struct hr_channel *channel = hr_client_channel(client);
        struct headrace_error local;
        enum headrace_status status =
                hr_channel_call(channel, request, deadline_ns, &local, ret_call, ret_answer);

        if (hr_client_has_ended(status, &local) && is_repeatable(request->kind) &&
            hr_client_reconnect(client, channel, deadline_ns)) {
                hr_channel_unref(channel);
                channel = hr_client_channel(client);
                status = hr_channel_call(channel, request, deadline_ns, &local, ret_call,
                                         ret_answer);
        }
        hr_channel_unref(channel);
        if (status != HEADRACE_OK && error)
                *error = local;
        return status;
}

uint32_t hr_client_body_max(struct headrace_client *client) {
        struct hr_channel *channel = hr_client_channel(client);
        uint32_t bytes = hr_channel_body_max(channel);

        hr_channel_unref(channel);
        return bytes;
}
