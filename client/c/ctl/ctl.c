/*
 * headracectl: from the command line to one command.
 *
 * Commands, options and exit codes stand in the tables here and nowhere else: the command line is
 * read by them, --help, `completion` and the generated parts of headracectl(1) (`manual`, which is
 * for the build) are written from them.
 */
#include "client/c/ctl/ctl.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/base.h"

#define DEFAULT_ADDRESS "unix:/run/headrace/headrace.sock"
#define TOKEN_BYTES_MAX 256
#define SECONDS_MAX 1e9

static const struct ctl_command commands[] = {
        {"status", "", "what the daemon is and what is held", 0, 0, false, ctl_status},
        {"health", "", "live, ready, degraded, and each device; the exit code says it, too", 0, 0,
         false, ctl_health},
        {"sessions", "", "sessions and what they hold", 0, 0, false, ctl_sessions},
        {"devices", "", "devices and their memory", 0, 0, false, ctl_devices},
        {"weights", "", "weight sets", 0, 0, false, ctl_weights},
        {"plans", "", "submitted graphs with their plans", 0, 0, false, ctl_plans},
        {"explain", "SESSION GRAPH", "how a graph that plans lists is run, split by split", 2, 2,
         false, ctl_explain},
        {"quota", "[PRINCIPAL]", "what principals hold and may hold", 0, 1, false, ctl_quota},
        {"top", "", "rates, devices and busiest sessions, again and again", 0, 0, false, ctl_top},
        {"trace", "", "what the daemon did lately, as Chrome/Perfetto JSON", 0, 0, false,
         ctl_trace},
        {"reload", "", "read the configuration again", 0, 0, false, ctl_reload},
        {"drain", "", "take no new requests, end those in flight, then end the daemon", 0, 0, false,
         ctl_drain},
        {"evict", "WHAT [SET]",
         "free what nobody uses: plans, graphs, experts, uploads, sessions, weights", 1, 2, false,
         ctl_evict},
        {"completion", "SHELL", "print the completion for bash, zsh or fish", 1, 1, true,
         ctl_completion},
        {"manual", "PART", "print a part of the manual: commands, options, exit", 1, 1, true,
         ctl_manual},
};

typedef enum option_kind { FLAG, TEXT, SECONDS, NUMBER, HELP, VERSION } option_kind;

static const struct option {
        const char *name, *argument; /* "" for none */
        option_kind kind;
        size_t offset;        /* in struct ctl */
        const char *commands; /* names with blanks; "" for all */
        const char *words;
} options[] = {
        {"--connect", "ADDRESS", TEXT, offsetof(struct ctl, address), "",
         "unix:/path, tcp:host:port or tls:host:port (default: $HEADRACE_ADDRESS, "
         "else " DEFAULT_ADDRESS ")"},
        {"--token-file", "FILE", TEXT, offsetof(struct ctl, token_file), "",
         "holds the token to show to the daemon (default: $HEADRACE_TOKEN)"},
        {"--tls-ca", "FILE", TEXT, offsetof(struct ctl, tls_ca), "",
         "PEM: who signed the daemon's certificate (default: whom the system trusts)"},
        {"--tls-certificate", "FILE", TEXT, offsetof(struct ctl, tls_certificate), "",
         "PEM: the certificate to show to the daemon"},
        {"--tls-key", "FILE", TEXT, offsetof(struct ctl, tls_key), "",
         "PEM: its key (default: in the same file)"},
        {"--tls-name", "NAME", TEXT, offsetof(struct ctl, tls_name), "",
         "whose the daemon's certificate must be (default: the host's)"},
        {"--timeout", "SECONDS", SECONDS, offsetof(struct ctl, timeout_s), "",
         "how long an answer may take (default: 10)"},
        {"--json", "", FLAG, offsetof(struct ctl, json), "", "one JSON object in place of text"},
        {"--all", "", FLAG, offsetof(struct ctl, all), "quota", "also what nothing is held of"},
        {"--interval", "SECONDS", SECONDS, offsetof(struct ctl, interval_s), "top",
         "between two looks (default: 1)"},
        {"--count", "N", NUMBER, offsetof(struct ctl, samples), "top",
         "end after so many (default: never)"},
        {"--latest", "MS", NUMBER, offsetof(struct ctl, latest_ms), "trace",
         "only what has ended in the latest milliseconds (default: all that is remembered)"},
        {"--own", "", FLAG, offsetof(struct ctl, own), "trace", "only of the asking principal"},
        {"--output", "FILE", TEXT, offsetof(struct ctl, output), "trace", "(default: stdout)"},
        {"--wait", "", FLAG, offsetof(struct ctl, wait), "drain",
         "return when all requests have ended and the daemon has hung up"},
        {"--limit", "SECONDS", SECONDS, offsetof(struct ctl, limit_s), "drain",
         "how long requests may last (default: as the daemon's drain_timeout)"},
        {"--version", "", VERSION, 0, "", "print the version and exit"},
        {"--help", "", HELP, 0, "", "print this and exit"},
};

static const struct {
        int code;
        const char *words;
} exits[] = {
        {CTL_OK, "done; health: ready"},
        {CTL_REFUSED, "the daemon refused or failed, or there is no such principal"},
        {CTL_USAGE, "wrong usage"},
        {CTL_NO_DAEMON,
         "no daemon (or none yet), none that is trusted, or the connection was lost"},
        {CTL_BAD_FILE, "a file cannot be read or written"},
        {CTL_NOT_READY, "health: not ready"},
        {CTL_DEGRADED,
         "health: ready, but a device is missing, lost, late or wrong, or memory is short"},
};

static const char *const evictable[] = {"plans", "graphs", "experts", "uploads", "sessions",
                                        "weights"};

/* ---- failures -------------------------------------------------------------------------------- */

int ctl_fail(const struct ctl *ctl) {
        const struct headrace_error *error = &ctl->error;
        bool lost = error->status == HEADRACE_UNAVAILABLE &&
                    (strcmp(error->reason, "CONNECT") == 0 || strcmp(error->reason, "EOF") == 0 ||
                     strcmp(error->reason, "TLS") == 0);

        if (ctl->json) {
                fputs("{\"error\":{\"status\":", stderr);
                ctl_json_text(stderr, headrace_status_name((int) error->status));
                fputs(",\"reason\":", stderr);
                ctl_json_text(stderr, error->reason);
                fputs(",\"words\":", stderr);
                ctl_json_text(stderr, error->words);
                fputs("}}\n", stderr);
        } else {
                fprintf(stderr, "headracectl: %s: %s\n", error->reason, error->words);
        }
        return lost || error->status == HEADRACE_UNAUTHENTICATED ? CTL_NO_DAEMON : CTL_REFUSED;
}

int ctl_misuse(const char *format, ...) {
        va_list args;

        fputs("headracectl: ", stderr);
        va_start(args, format);
        (void) vfprintf(stderr, format, args);
        va_end(args);
        fputs("; see headracectl --help\n", stderr);
        return CTL_USAGE;
}

/* ---- what the tables say --------------------------------------------------------------------- */

static bool is_of(const struct option *option, const char *command) {
        const char *at = option->commands;

        return *at == '\0' || strcmp(at, command) == 0;
}

static void help_print(void) {
        puts("usage: headracectl [OPTION]... COMMAND [ARGUMENT]...\n\ncommands:");
        for (size_t i = 0; i < HR_ARRAY_LENGTH(commands); i++)
                printf("  %-10s %-14s %s\n", commands[i].name, commands[i].arguments,
                       commands[i].words);
        puts("\noptions:");
        for (size_t i = 0; i < HR_ARRAY_LENGTH(options); i++)
                printf("  %-12s %-8s %s%s%s\n", options[i].name, options[i].argument,
                       options[i].commands, *options[i].commands ? ": " : "", options[i].words);
        puts("\nexit codes:");
        for (size_t i = 0; i < HR_ARRAY_LENGTH(exits); i++)
                printf("  %d  %s\n", exits[i].code, exits[i].words);
}

/* roff: a hyphen in a name is a minus, and a line must not begin with a dot. */
static void roff_print(const char *text) {
        for (; *text; text++) {
                if (*text == '-')
                        fputs("\\-", stdout);
                else if (*text == '\\')
                        fputs("\\e", stdout);
                else
                        putchar(*text);
        }
}

static void roff_item(const char *name, const char *argument, const char *before,
                      const char *words) {
        fputs(".TP\n.B ", stdout);
        roff_print(name);
        if (*argument) {
                fputs(" \\fI", stdout);
                roff_print(argument);
                fputs("\\fR", stdout);
        }
        putchar('\n');
        if (*before) {
                roff_print(before);
                fputs(": ", stdout);
        }
        roff_print(words);
        fputs(".\n", stdout);
}

int ctl_manual(struct ctl *ctl) {
        const char *part = ctl->arguments[0];
        char code[16];

        if (strcmp(part, "commands") == 0) {
                for (size_t i = 0; i < HR_ARRAY_LENGTH(commands); i++)
                        if (commands[i].run != ctl_manual)
                                roff_item(commands[i].name, commands[i].arguments, "",
                                          commands[i].words);
        } else if (strcmp(part, "options") == 0) {
                for (size_t i = 0; i < HR_ARRAY_LENGTH(options); i++)
                        roff_item(options[i].name, options[i].argument, options[i].commands,
                                  options[i].words);
        } else if (strcmp(part, "exit") == 0) {
                for (size_t i = 0; i < HR_ARRAY_LENGTH(exits); i++) {
                        (void) snprintf(code, sizeof code, "%d", exits[i].code);
                        roff_item(code, "", "", exits[i].words);
                }
        } else {
                return ctl_misuse("no part %s of the manual", part);
        }
        return CTL_OK;
}

/* ---- completion ------------------------------------------------------------------------------ */

static void names_print(const char *separator) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(commands); i++)
                if (commands[i].run != ctl_manual)
                        printf("%s%s", i > 0 ? separator : "", commands[i].name);
}

static void options_print(const char *command) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(options); i++)
                if (is_of(&options[i], command))
                        printf("%s ", options[i].name);
}

static void bash_print(void) {
        fputs("# bash completion for headracectl\n"
              "_headracectl() {\n"
              "        local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
              "        local command='' at known\n"
              "        COMPREPLY=()\n"
              "        case $before in\n",
              stdout);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(options); i++)
                if (*options[i].argument)
                        printf("        %s) %s; return ;;\n", options[i].name,
                               strcmp(options[i].argument, "FILE") == 0
                                       ? "COMPREPLY=($(compgen -f -- \"$word\"))"
                                       : ":");
        fputs("        esac\n        for ((at = 1; at < COMP_CWORD; at++)); do\n"
              "                case ${COMP_WORDS[at]} in\n                ",
              stdout);
        names_print("|");
        fputs(") command=${COMP_WORDS[at]}; break ;;\n                esac\n        done\n"
              "        case $command in\n        evict) known='",
              stdout);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(evictable); i++)
                printf("%s ", evictable[i]);
        fputs("' ;;\n        completion) known='bash zsh fish' ;;\n        '') known='", stdout);
        names_print(" ");
        fputs("' ;;\n        *) known='' ;;\n        esac\n"
              "        if [[ $word == -* ]]; then\n                case $command in\n",
              stdout);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(commands); i++) {
                printf("                %s) known='", commands[i].name);
                options_print(commands[i].name);
                fputs("' ;;\n", stdout);
        }
        fputs("                *) known='", stdout);
        options_print("");
        fputs("' ;;\n                esac\n        fi\n"
              "        COMPREPLY=($(compgen -W \"$known\" -- \"$word\"))\n}\n"
              "complete -F _headracectl headracectl\n",
              stdout);
}

/* In single quotes. */
static void quoted_print(const char *text) {
        for (; *text; text++)
                fputs(*text == '\'' ? "'\\''" : (char[2]){*text, '\0'}, stdout);
}

/* In a description of zsh: brackets and colons would end it. */
static void zsh_words_print(const char *text) {
        for (; *text; text++) {
                if (*text == '[' || *text == ']' || *text == ':')
                        putchar('\\');
                fputs(*text == '\'' ? "'\\''" : (char[2]){*text, '\0'}, stdout);
        }
}

static void zsh_options_print(const char *command, bool of_all) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(options); i++) {
                if ((*options[i].commands == '\0') != of_all || !is_of(&options[i], command))
                        continue;
                printf(" \\\n                '%s[", options[i].name);
                zsh_words_print(options[i].words);
                printf("]%s%s%s'", *options[i].argument ? ":" : "", options[i].argument,
                       strcmp(options[i].argument, "FILE") == 0 ? ":_files"
                       : *options[i].argument                   ? ":"
                                                                : "");
        }
}

static void zsh_print(void) {
        fputs("#compdef headracectl\n_headracectl() {\n        local -a commands\n"
              "        local state line\n        commands=(\n",
              stdout);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(commands); i++) {
                if (commands[i].run == ctl_manual)
                        continue;
                printf("                '%s:", commands[i].name);
                zsh_words_print(commands[i].words);
                fputs("'\n", stdout);
        }
        fputs("        )\n        _arguments -C", stdout);
        zsh_options_print("", true);
        fputs(" \\\n                '1:command:->command' '*::argument:->argument'\n"
              "        case $state in\n"
              "        command) _describe command commands ;;\n"
              "        argument)\n                case $words[1] in\n"
              "                evict) _values what",
              stdout);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(evictable); i++)
                printf(" %s", evictable[i]);
        fputs(" ;;\n                completion) _values shell bash zsh fish ;;\n", stdout);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(commands); i++) {
                bool any = false;

                for (size_t k = 0; k < HR_ARRAY_LENGTH(options); k++)
                        any |= strcmp(options[k].commands, commands[i].name) == 0;
                if (!any)
                        continue;
                printf("                %s) _arguments", commands[i].name);
                zsh_options_print(commands[i].name, false);
                fputs(" ;;\n", stdout);
        }
        fputs("                esac ;;\n        esac\n}\n_headracectl \"$@\"\n", stdout);
}

static void fish_print(void) {
        puts("# fish completion for headracectl\ncomplete -c headracectl -f");
        for (size_t i = 0; i < HR_ARRAY_LENGTH(commands); i++) {
                if (commands[i].run == ctl_manual)
                        continue;
                printf("complete -c headracectl -n __fish_use_subcommand -a %s -d '",
                       commands[i].name);
                quoted_print(commands[i].words);
                puts("'");
        }
        for (size_t i = 0; i < HR_ARRAY_LENGTH(options); i++) {
                fputs("complete -c headracectl", stdout);
                if (*options[i].commands)
                        printf(" -n '__fish_seen_subcommand_from %s'", options[i].commands);
                printf(" -l %s%s -d '", options[i].name + 2,
                       strcmp(options[i].argument, "FILE") == 0 ? " -r -F"
                       : *options[i].argument                   ? " -x"
                                                                : "");
                quoted_print(options[i].words);
                puts("'");
        }
        fputs("complete -c headracectl -n '__fish_seen_subcommand_from evict' -a '", stdout);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(evictable); i++)
                printf("%s%s", i > 0 ? " " : "", evictable[i]);
        puts("'\ncomplete -c headracectl -n '__fish_seen_subcommand_from completion' "
             "-a 'bash zsh fish'");
}

int ctl_completion(struct ctl *ctl) {
        if (strcmp(ctl->arguments[0], "bash") == 0)
                bash_print();
        else if (strcmp(ctl->arguments[0], "zsh") == 0)
                zsh_print();
        else if (strcmp(ctl->arguments[0], "fish") == 0)
                fish_print();
        else
                return ctl_misuse("no completion for %s", ctl->arguments[0]);
        return CTL_OK;
}

/* ---- the command line ------------------------------------------------------------------------ */

bool ctl_parse_u64(const char *text, uint64_t *ret_value) {
        char *rest;

        if (*text < '0' || *text > '9')
                return false;
        errno = 0;
        *ret_value = strtoull(text, &rest, 10);
        return errno == 0 && *rest == '\0';
}

static bool parse_seconds(const char *text, double *ret_value) {
        char *rest;

        if ((*text < '0' || *text > '9') && *text != '.')
                return false;
        *ret_value = strtod(text, &rest);
        return *rest == '\0' && isfinite(*ret_value) && *ret_value > 0 && *ret_value <= SECONDS_MAX;
}

static bool option_set(struct ctl *ctl, const struct option *option, const char *value) {
        void *field = (char *) ctl + option->offset;

        switch (option->kind) {
        case FLAG:
                *(bool *) field = true;
                return true;
        case TEXT:
                *(const char **) field = value;
                return true;
        case SECONDS:
                return parse_seconds(value, field);
        case NUMBER:
                return ctl_parse_u64(value, field);
        default:
                return true;
        }
}

/* The option of argv[*index], with its value; NULL: there is none of this name, or its value is
 * missing or superfluous. */
static const struct option *option_find(int argc, char **argv, int *index,
                                        const char **ret_value) {
        const char *text = argv[*index], *equals = strchr(text, '=');
        size_t length = equals ? (size_t) (equals - text) : strlen(text);

        for (size_t i = 0; i < HR_ARRAY_LENGTH(options); i++) {
                if (strlen(options[i].name) != length ||
                    strncmp(options[i].name, text, length) != 0)
                        continue;
                *ret_value = equals ? equals + 1 : NULL;
                if (*options[i].argument && !equals)
                        *ret_value = *index + 1 < argc ? argv[++*index] : NULL;
                return (*ret_value != NULL) == (*options[i].argument != '\0') ? &options[i] : NULL;
        }
        return NULL;
}

static const struct ctl_command *command_find(const char *name) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(commands); i++)
                if (strcmp(commands[i].name, name) == 0)
                        return &commands[i];
        return NULL;
}

/* -1 to go on, or the exit code. Options may stand anywhere; arguments are moved to the front. */
static int arguments_parse(int argc, char **argv, struct ctl *ctl,
                           const struct ctl_command **ret_command) {
        const struct option *given[HR_ARRAY_LENGTH(options)] = {NULL};
        const struct ctl_command *command = NULL;
        const char *value;
        int count = 0;

        for (int i = 1; i < argc; i++) {
                const char *text = argv[i];
                const struct option *option;

                if (text[0] != '-' || text[1] == '\0') {
                        argv[count++] = argv[i];
                        continue;
                }
                option = option_find(argc, argv, &i, &value);
                if (!option || !option_set(ctl, option, value))
                        return ctl_misuse("what is %s?", text);
                if (option->kind == HELP) {
                        help_print();
                        return CTL_OK;
                }
                if (option->kind == VERSION) {
                        printf("headracectl %s\n", headrace_version());
                        return CTL_OK;
                }
                given[option - options] = option;
        }
        command = count > 0 ? command_find(argv[0]) : NULL;
        if (!command)
                return count > 0 ? ctl_misuse("no command %s", argv[0])
                                 : ctl_misuse("which command?");
        for (size_t i = 0; i < HR_ARRAY_LENGTH(options); i++)
                if (given[i] && !is_of(given[i], command->name))
                        return ctl_misuse("%s does not take %s", command->name, given[i]->name);
        if (count - 1 < command->least || count - 1 > command->most)
                return ctl_misuse("%s%s%s", command->name, *command->arguments ? " " : "",
                                  *command->arguments ? command->arguments
                                                      : " takes no argument");
        ctl->arguments = argv + 1;
        ctl->argument_count = count - 1;
        *ret_command = command;
        return -1;
}

/* ---- the connection -------------------------------------------------------------------------- */

/* The token into the buffer; its length, or -1. */
static int token_read(const struct ctl *ctl, char token[TOKEN_BYTES_MAX + 2]) {
        const char *given = getenv("HEADRACE_TOKEN");
        size_t bytes;
        FILE *stream;

        if (!ctl->token_file) {
                bytes = given ? strlen(given) : 0;
                if (bytes > TOKEN_BYTES_MAX)
                        return -1;
                memcpy(token, given ? given : "", bytes);
                return (int) bytes;
        }
        stream = fopen(ctl->token_file, "re");
        if (!stream)
                return -1;
        bytes = fread(token, 1, TOKEN_BYTES_MAX + 2, stream);
        if (ferror(stream))
                bytes = TOKEN_BYTES_MAX + 2;
        (void) fclose(stream);
        while (bytes > 0 && (token[bytes - 1] == '\n' || token[bytes - 1] == '\r' ||
                             token[bytes - 1] == ' '))
                bytes--;
        return bytes <= TOKEN_BYTES_MAX ? (int) bytes : -1;
}

static int run_connected(struct ctl *ctl, const struct ctl_command *command) {
        char token[TOKEN_BYTES_MAX + 2], name[32];
        int token_bytes = token_read(ctl, token), code;
        const struct headrace_options how = {
                .timeout_ms = (int64_t) (ctl->timeout_s * 1000) + 1,
                .client_name = name,
                .credentials = token,
                .credentials_bytes = token_bytes > 0 ? (size_t) token_bytes : 0,
                .tls_ca = ctl->tls_ca,
                .tls_certificate = ctl->tls_certificate,
                .tls_key = ctl->tls_key,
                .tls_name = ctl->tls_name,
        };

        if (token_bytes < 0) {
                fprintf(stderr, "headracectl: the token cannot be read%s%s\n",
                        ctl->token_file ? ": " : "", ctl->token_file ? ctl->token_file : "");
                return CTL_BAD_FILE;
        }
        (void) snprintf(name, sizeof name, "headracectl %s", command->name);
        if (headrace_connect(ctl->address, &how, &ctl->error, &ctl->client) != HEADRACE_OK) {
                code = ctl_fail(ctl);
                if (ctl->error.status == HEADRACE_INVALID)
                        return strcmp(ctl->error.reason, "TLS") == 0 ? CTL_BAD_FILE : CTL_USAGE;
                return ctl->error.status == HEADRACE_DEADLINE ? CTL_NO_DAEMON : code;
        }
        code = command->run(ctl);
        headrace_close(ctl->client);
        return code;
}

int main(int argc, char **argv) {
        const char *address = getenv("HEADRACE_ADDRESS");
        struct ctl ctl = {
                .address = address && *address ? address : DEFAULT_ADDRESS,
                .timeout_s = 10,
                .interval_s = 1,
        };
        const struct ctl_command *command = NULL;
        int code = arguments_parse(argc, argv, &ctl, &command);

        if (code >= 0)
                return code;
        if (!command->offline)
                return run_connected(&ctl, command);
        code = command->run(&ctl);
        if (code == CTL_OK && (fflush(stdout) != 0 || ferror(stdout))) {
                fprintf(stderr, "headracectl: stdout: %s\n", strerror(errno));
                return CTL_BAD_FILE;
        }
        return code;
}
