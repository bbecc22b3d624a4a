/*
 * Keys that say where the daemon listens and who may come in: addresses, users, groups, tokens,
 * permissions; and the rules that hold between them.
 *
 * Names of users and groups are looked up when they are read: what counts are their numbers.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config_priv.h"

static const struct {
        const char *name;
        uint64_t bit;
} permissions[] = {{"run", HR_PERMIT_RUN}, {"load", HR_PERMIT_LOAD}, {"admin", HR_PERMIT_ADMIN}};

/* The next item of a list with commas, without blanks around it. False at the end of the list;
 * longer items than there is room for are cut, and match nothing. */
static bool next_item(const char **text, char item[64]) {
        size_t bytes;

        *text += strspn(*text, " \t,");
        bytes = strcspn(*text, ",");
        if (bytes == 0)
                return false;
        snprintf(item, 64, "%.*s", (int) HR_MIN(bytes, 63U), *text);
        *text += bytes;
        for (size_t i = strlen(item); i > 0 && (item[i - 1] == ' ' || item[i - 1] == '\t'); i--)
                item[i - 1] = '\0';
        return true;
}

/* ---- Addresses ------------------------------------------------------------------------------- */

static bool parse_port(const char *text, uint16_t *ret_port) {
        char *rest;
        unsigned long port;

        if (*text < '0' || *text > '9')
                return false;
        errno = 0;
        port = strtoul(text, &rest, 10);
        *ret_port = (uint16_t) port;
        return *rest == '\0' && errno == 0 && port <= UINT16_MAX;
}

/* ADDRESS:PORT, the address in numbers, IPv6 in brackets, or localhost. */
static bool parse_address(const char *text, struct hr_address *ret_address) {
        struct sockaddr_in *v4 = (struct sockaddr_in *) &ret_address->socket;
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *) &ret_address->socket;
        const char *colon = strrchr(text, ':');
        struct in6_addr addr6;
        struct in_addr addr4;
        char host[64];
        uint16_t port;

        if (!colon || (size_t) (colon - text) >= sizeof host || !parse_port(colon + 1, &port))
                return false;
        snprintf(host, sizeof host, "%.*s", (int) (colon - text), text);
        if (host[0] == '[' && host[strlen(host) - 1] == ']') {
                host[strlen(host) - 1] = '\0';
                if (inet_pton(AF_INET6, host + 1, &addr6) != 1)
                        return false;
                *v6 = (struct sockaddr_in6){.sin6_family = AF_INET6,
                                            .sin6_port = htons(port),
                                            .sin6_addr = addr6};
                ret_address->socket_bytes = sizeof *v6;
                ret_address->is_loopback = IN6_IS_ADDR_LOOPBACK(&addr6);
                return true;
        }
        if (inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &addr4) != 1)
                return false;
        *v4 = (struct sockaddr_in){
                .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = addr4};
        ret_address->socket_bytes = sizeof *v4;
        ret_address->is_loopback = ntohl(addr4.s_addr) >> 24 == 127;
        return true;
}

unsigned hr_socket_port(const struct sockaddr_storage *socket) {
        return ntohs(socket->ss_family == AF_INET6
                             ? ((const struct sockaddr_in6 *) socket)->sin6_port
                             : ((const struct sockaddr_in *) socket)->sin_port);
}

static hr_status set_address(const struct origin *origin, const struct key *key, const char *text,
                             struct hr_address *field) {
        struct hr_address address = {0};

        if (*text != '\0' && !parse_address(text, &address))
                return hr_config_fail(origin, key,
                                      "'%.60s' is not ADDRESS:PORT (an address in numbers, "
                                      "IPv6 in brackets, or localhost)",
                                      text);
        address.text = field->text;
        HR_TRY(hr_config_set_string(origin, key, text, &address.text));
        *field = address;
        return HR_OK;
}

/* ---- Identities ------------------------------------------------------------------------------ */

static bool id_of(enum kind kind, const char *item, uint32_t *ret_id) {
        char *rest;
        unsigned long number;

        errno = 0;
        number = strtoul(item, &rest, 10);
        if (*item >= '0' && *item <= '9' && *rest == '\0') {
                *ret_id = (uint32_t) number;
                return errno == 0 && number < UINT32_MAX;
        }
        if (kind == KIND_USERS) {
                const struct passwd *user = getpwnam(item);

                *ret_id = user ? user->pw_uid : 0;
                return user != NULL;
        } else {
                const struct group *group = getgrnam(item);

                *ret_id = group ? group->gr_gid : 0;
                return group != NULL;
        }
}

static hr_status set_ids(const struct origin *origin, const struct key *key, const char *text,
                         struct hr_id_list *field) {
        struct hr_id_list list = {0};
        char item[64];

        while (next_item(&text, item)) {
                uint32_t *grown = reallocarray(list.ids, list.count + 1, sizeof *grown);
                hr_status status = HR_OK;

                if (!grown)
                        status = hr_fail(origin->diag, HR_E_EXHAUSTED, "value of %s", key->name);
                else
                        list.ids = grown;
                if (grown && !id_of(key->kind, item, &grown[list.count]))
                        status = hr_config_fail(origin, key, "'%.60s' is no %s of this system",
                                                item, key->kind == KIND_USERS ? "user" : "group");
                if (status != HR_OK) {
                        free(list.ids);
                        return status;
                }
                list.count++;
        }
        free(field->ids);
        *field = list;
        return HR_OK;
}

static hr_status set_permissions(const struct origin *origin, const struct key *key,
                                 const char *text, uint64_t *field) {
        uint64_t mask = 0;
        char item[64];

        while (next_item(&text, item)) {
                uint64_t bit = 0;

                for (size_t i = 0; i < HR_ARRAY_LENGTH(permissions); i++)
                        if (strcmp(item, permissions[i].name) == 0)
                                bit = permissions[i].bit;
                if (!bit)
                        return hr_config_fail(origin, key, "'%.60s' is none of: run load admin",
                                              item);
                mask |= bit;
        }
        *field = mask;
        return HR_OK;
}

static int hex_value(char digit) {
        const char *digits = "0123456789abcdef", *found = strchr(digits, digit | 0x20);

        return digit != '\0' && found ? (int) (found - digits) : -1;
}

static hr_status set_token(const struct origin *origin, const struct key *key, const char *text,
                           struct hr_config_principal *principal) {
        uint8_t digest[HR_TOKEN_DIGEST_BYTES] = {0};
        bool good = strlen(text) == 2 * sizeof digest;

        for (size_t i = 0; good && i < sizeof digest; i++) {
                int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);

                good = high >= 0 && low >= 0;
                digest[i] = (uint8_t) ((high & 15) << 4 | (low & 15));
        }
        if (!good && *text != '\0')
                return hr_config_fail(origin, key, "not the 64 hexadecimal digits of a SHA-256");
        principal->has_token = good;
        memcpy(principal->token_digest, digest, sizeof digest);
        return HR_OK;
}

static hr_status set_name(const struct origin *origin, const struct key *key, const char *text,
                          char **field) {
        for (const char *at = text; *at != '\0'; at++)
                if ((unsigned char) *at < ' ' || *at == 0x7f || *at == ';' || *at == '#')
                        return hr_config_fail(origin, key, "has a control character or a comment");
        if (strlen(text) > key->high)
                return hr_config_fail(origin, key, "longer than %" PRIu64 " bytes", key->high);
        return hr_config_set_string(origin, key, text, field);
}

/* ---- All of them ----------------------------------------------------------------------------- */

hr_status hr_config_set_access(const struct origin *origin, const struct key *key, const char *text,
                               void *object) {
        void *field = (char *) object + key->offset;

        switch (key->kind) {
        case KIND_ADDRESS:
                return set_address(origin, key, text, field);
        case KIND_USERS:
        case KIND_GROUPS:
                return set_ids(origin, key, text, field);
        case KIND_PERMISSIONS:
                return set_permissions(origin, key, text, field);
        case KIND_TOKEN:
                return set_token(origin, key, text, object);
        case KIND_NAME:
                return set_name(origin, key, text, field);
        default:
                return hr_fail(origin->diag, HR_E_INTERNAL, "key of no kind");
        }
}

void hr_config_dump_access(const struct key *key, const void *object, FILE *stream) {
        const void *field = (const char *) object + key->offset;
        const struct hr_config_principal *principal = object;
        const struct hr_id_list *list = field;
        const char *comma = "";

        switch (key->kind) {
        case KIND_ADDRESS:
                fputs(((const struct hr_address *) field)->text
                              ? ((const struct hr_address *) field)->text
                              : "",
                      stream);
                break;
        case KIND_USERS:
        case KIND_GROUPS:
                for (uint32_t i = 0; i < list->count; i++)
                        fprintf(stream, "%s%" PRIu32, i > 0 ? "," : "", list->ids[i]);
                break;
        case KIND_PERMISSIONS:
                for (size_t i = 0; i < HR_ARRAY_LENGTH(permissions); i++)
                        if (*(const uint64_t *) field & permissions[i].bit) {
                                fprintf(stream, "%s%s", comma, permissions[i].name);
                                comma = ",";
                        }
                break;
        case KIND_TOKEN:
                for (size_t i = 0; principal->has_token && i < HR_TOKEN_DIGEST_BYTES; i++)
                        fprintf(stream, "%02x", principal->token_digest[i]);
                break;
        case KIND_NAME:
                fputs(*(const char *const *) field ? *(const char *const *) field : "", stream);
                break;
        default:
                break;
        }
}

hr_status hr_config_check_access(const struct origin *origin, const struct hr_config *config) {
        bool is_known_by_proof = false;

        if (!config->unix_path && !config->tcp.text && !config->tls.text)
                return hr_config_fail(origin, NULL,
                                      "none of listen.unix, listen.tcp and listen.tls is given");
        if (config->tcp.text && !config->tcp.is_loopback && !config->insecure)
                return hr_config_fail(origin, NULL,
                                      "listen.tcp = %.60s is not on the loopback (127.0.0.1, [::1] "
                                      "or localhost): everybody on the way could read and change "
                                      "what is sent. Use listen.tls, or say listen.insecure = yes",
                                      config->tcp.text);
        if (config->tls.text && (!config->tls_certificate || !config->tls_key))
                return hr_config_fail(origin, NULL,
                                      "listen.tls needs tls.certificate and tls.key");
        for (uint32_t i = 0; i < config->principal_count; i++) {
                const struct hr_config_principal *principal = &config->principals[i];

                if (principal->certificate && !config->tls_client_ca)
                        return hr_config_fail(origin, NULL,
                                              "principal '%s' is known by a certificate, but "
                                              "tls.client_ca is not given",
                                              principal->name);
                if (!principal->has_token && !principal->certificate && !principal->uids.count &&
                    !principal->gids.count)
                        return hr_config_fail(origin, NULL,
                                              "principal '%s' is known by nothing: give uid, gid, "
                                              "token_sha256 or certificate",
                                              principal->name);
                is_known_by_proof |= principal->has_token || principal->certificate;
        }
        if (config->tls.text && !is_known_by_proof)
                return hr_config_fail(origin, NULL,
                                      "listen.tls needs a [principal NAME] with token_sha256 or "
                                      "certificate");
        return HR_OK;
}

void hr_config_clear_principal(struct hr_config_principal *principal) {
        free(principal->name);
        free(principal->uids.ids);
        free(principal->gids.ids);
        free(principal->certificate);
        explicit_bzero(principal->token_digest, sizeof principal->token_digest);
}
