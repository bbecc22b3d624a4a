/*
 * Configuration: an INI file, then fragments of it in a folder beside it, then `section.key=value`
 * overrides, validated as a whole.
 *
 * One table in config.c lists every key with its type, bounds and default; it drives parsing,
 * checking and dumping. An unknown section or key, a key given twice in a file, a section opened
 * twice there, a value that is no value of its type or out of bounds is HR_E_INVALID with file,
 * line and key in the words.
 *
 * Sections: [daemon] [listen] [tls] [models] [limits], one [principal NAME] per identity that may
 * come in, and one [device NAME] per device, in priority order. Without any device there is one for
 * each GPU that can be used (`cuda0`, ...), and `cpu0`: backend cpu, shared memory, all processors.
 * The last device must have backend cpu. Without any
 * principal everybody who can open the Unix socket, or a plain TCP connection, may do everything.
 * Thread: main, before anything else starts; read-only from then on.
 */
#pragma once

#include <stdio.h>
#include <sys/socket.h>

#include "core/log.h"
#include "core/status.h"
#include "daemon/limits.h"

#define HR_DEVICE_NAME_BYTES_MAX 31 /* of principals, too */
#define HR_SECTION_KEYS_MAX 24      /* of a section of which there are many */
#define HR_TOKEN_DIGEST_BYTES 32

struct hr_limits {
        /* Told in the hello. */
        uint64_t message_bytes, body_bytes;
        uint64_t graph_nodes, graph_bytes, tensor_bytes;
        uint64_t session_graphs, session_runs, session_state_bytes;
        uint64_t upload_bytes, output_queue_bytes, run_bytes, copies;
        /* The others. */
        uint64_t device_runs, device_ahead_ns;
        uint64_t taps, pins, session_device_bytes, session_buffer_bytes, session_plan_bytes;
        uint64_t weights_bytes, weights_tensors, session_weights, session_uploads, kept_sets;
        uint64_t session_regions, principal_regions;
        uint64_t upload_window_bytes, resident_bytes;
        uint64_t metadata_bytes, metadata_keys, manifest_bytes, placement_rules;
        uint64_t session_states, state_tensors;
        /* Of all sessions of one principal. */
        uint64_t principal_sessions, principal_connections, principal_weights, principal_states;
        uint64_t principal_graphs, principal_reservations, principal_runs, principal_uploads;
        uint64_t principal_state_bytes, principal_buffer_bytes, principal_upload_bytes;
        uint64_t principal_weight_bytes, principal_device_bytes, principal_output_bytes;
        uint64_t principal_plan_bytes, principal_descriptors;
        uint64_t principal_misses, principal_cancels; /* per second */
        uint64_t connections, greetings, connection_requests, backlog;
        uint64_t hello_timeout_ns, refusal_delay_ns, progress_timeout_ns, output_timeout_ns,
                tap_timeout_ns;
};

struct hr_config_device {
        char *name;
        const char *backend;  /* "cpu", "blas", "cuda": a name of hr_backend_names() */
        uint64_t threads;     /* 0 = one per processor */
        bool isolated;        /* memory = isolated */
        uint64_t memory_cap;  /* bytes, 0 = none */
        uint64_t expert_bytes; /* for experts of host weights that stay here; 0 = for all of them */
        uint64_t spin_ns;
        bool deterministic;
        const char *arithmetic; /* "ggml", "fast" */
        const char *isa;      /* "auto", "portable", "avx2", "avx512", "avx512bf16" */
        char *deny_ops;       /* see core/deny.h, checked; NULL = none */
        uint64_t delay_ns;    /* added before each split */
        uint64_t batch_min;   /* columns from which blas takes a product; cuda: see hr_cuda_config;
                               * 0 = default */
        bool required;        /* without it the daemon is not ready */
        uint64_t gpu;         /* cuda: the GPU's number, as the driver counts */
        uint64_t pin_bytes;   /* cuda: host memory locked for weights that stay there; 0 = none */
        bool graphs;          /* cuda: splits that are computed again are one launch */
        /* Private: opened by the file that is read; keys it has given, by position in the table. */
        bool is_opened, given[HR_SECTION_KEYS_MAX];
};

/* What a principal may do. */
#define HR_PERMIT_RUN 1U   /* graphs, states, runs; weight sets that are there */
#define HR_PERMIT_LOAD 2U  /* bring in weights: files, uploads */
#define HR_PERMIT_ADMIN 4U /* figures of the whole daemon */
#define HR_PERMIT_ALL 7U

/* Numbers of users or groups. */
struct hr_id_list {
        uint32_t *ids;
        uint32_t count;
};

/* An identity, and by what it is known: any of what is given. */
struct hr_config_principal {
        char *name;
        struct hr_id_list uids, gids; /* of a Unix peer */
        bool has_token;
        uint8_t token_digest[HR_TOKEN_DIGEST_BYTES]; /* SHA-256 of its token */
        char *certificate;    /* common name of its client certificate; NULL = none */
        uint64_t permissions; /* HR_PERMIT_... */
        uint64_t weight;      /* its share of the devices */
        bool is_opened, given[HR_SECTION_KEYS_MAX]; /* private, as a device's */
};

/* ADDRESS:PORT. */
struct hr_address {
        char *text;                     /* as written, NULL = none */
        struct sockaddr_storage socket; /* parsed */
        socklen_t socket_bytes;         /* 0 = none */
        bool is_loopback;
};

/* Which sets the service manager keeps beyond the end of the process. */
typedef enum hr_keep {
        HR_KEEP_NONE,
        HR_KEEP_HOST, /* uploads whose contents are used in host memory */
        HR_KEEP_ALL,  /* all uploads: contents that devices have copied stay in host memory, too */
} hr_keep;

struct hr_config {
        bool devices_are_found; /* none was given */
        /* [daemon] */
        hr_log_level log_level;
        uint64_t drain_timeout_ns;
        uint64_t session_grace_ns, upload_grace_ns;
        char *cache_directory; /* of uploads on disk; NULL = none */
        uint64_t cache_bytes;
        const char *keep; /* "none", "host", "all": uploads that outlive the process */
        uint64_t keep_grace_ns; /* how long they wait for a session afterwards */
        uint64_t spin_ns;            /* loop and engine */
        uint64_t plan_cache_bytes;
        uint64_t debug;              /* HR_DEBUG_...: what is logged of every plan */
        bool optimize;               /* devices order and join the nodes of their splits */
        const char *realloc; /* "count" or "fail" */
        const char *revocation; /* "abort" or "finish" */
        uint64_t heartbeat_ns;  /* between two */
        uint64_t device_retry_ns; /* between two looks for a required device */
        uint64_t trace_spans;   /* that the loop and each queue keep; 0 = none */
        char *memory_pressure;  /* "auto", "off" or a path; pressure.h */
        uint64_t memory_look_ns, memory_idle_ns;
        uint64_t memory_stall_ns; /* of a second */
        struct hr_address metrics; /* where HTTP answers */
        /* [listen] */
        char *unix_path;             /* NULL = no Unix socket */
        uint64_t unix_mode;          /* permission bits, e.g. 0660 */
        struct hr_address tcp, tls;
        bool insecure;               /* tcp may be off the loopback */
        /* [tls] */
        char *tls_certificate, *tls_key; /* PEM files; the certificate with its chain */
        char *tls_client_ca;         /* PEM file of who signs clients' certificates; NULL = none
                                      * asked for */
        /* [models] */
        char **directories;
        uint32_t directory_count;
        /* [limits] */
        struct hr_limits limits;
        /* [device NAME] */
        struct hr_config_device *devices;
        uint32_t device_count;
        /* [principal NAME] */
        struct hr_config_principal *principals;
        uint32_t principal_count;
        /* Private: what has been given, and by whom. */
        struct hr_config_given *given;
};

/* All defaults. HR_E_EXHAUSTED without memory. Zeroed is valid to deinit. */
HR_NODISCARD hr_status hr_config_init(struct hr_config *config, struct hr_diag *diag);
void hr_config_deinit(struct hr_config *config);
/* Reads a file over what there is: what it says replaces that, key by key, a list as a whole.
 * HR_E_NOT_FOUND when it cannot be opened. */
HR_NODISCARD hr_status hr_config_read_file(struct hr_config *config, const char *path,
                                           struct hr_diag *diag);
/* The same from memory; `label` stands for the file name in messages. */
HR_NODISCARD hr_status hr_config_read_text(struct hr_config *config, const char *label,
                                           const char *text, size_t text_bytes,
                                           struct hr_diag *diag);
/* Reads every PATH.d/NAME.conf in the order of the names' bytes, hidden files left out. Without
 * that folder there is nothing to read. */
HR_NODISCARD hr_status hr_config_read_fragments(struct hr_config *config, const char *path,
                                                struct hr_diag *diag);
/* One override, "section.key=value", "device.NAME.key=value" or "principal.NAME.key=value";
 * replaces what the files said, the last one wins. A device that does not exist yet is added after
 * the others. */
HR_NODISCARD hr_status hr_config_set(struct hr_config *config, const char *assignment,
                                     struct hr_diag *diag);
/* Adds the default device when there is none and checks what concerns several keys. Must be called
 * once, after file and overrides. */
HR_NODISCARD hr_status hr_config_finish(struct hr_config *config, struct hr_diag *diag);
/* The port of an IPv4 or IPv6 address; 0 = to be chosen by the system, which the log tells.
 * Thread: any. */
unsigned hr_socket_port(const struct sockaddr_storage *socket);
/* Is a session's reallocation of compute memory refused? */
bool hr_config_realloc_fails(const struct hr_config *config);
hr_keep hr_config_keep(const struct hr_config *config);
/* Prints the effective values as an INI file that reads back to the same configuration. */
void hr_config_dump(const struct hr_config *config, FILE *stream);

/* Names of keys, "section.key" or "section.NAME.key", with commas; cut to the room. */
#define HR_CONFIG_CHANGES_BYTES 1024
struct hr_config_changes {
        char applied[HR_CONFIG_CHANGES_BYTES];
        char kept[HR_CONFIG_CHANGES_BYTES]; /* differ, but need a new start */
};
/* Compares with a configuration that was read anew, and takes over what may change while the daemon
 * runs; `fresh` gets what it replaces. Thread: loop. HR_E_EXHAUSTED: maybe in part, but all
 * principals are the old ones. */
HR_NODISCARD hr_status hr_config_reload(struct hr_config *config, struct hr_config *fresh,
                                        struct hr_diag *diag,
                                        struct hr_config_changes *ret_changes);
