/* From the command line to the server. Exit codes: 0 drained, 1 failed, 64 usage, 73 the socket is
 * another daemon's, 78 the configuration is wrong (sysexits.h). */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sysexits.h>

#include "core/log.h"
#include "daemon/config.h"
#include "daemon/journal.h"
#include "daemon/server.h"

#define SETTINGS_MAX 256

struct arguments {
        const char *config_path;
        const char *settings[SETTINGS_MAX];
        int setting_count;
        bool check, dump;
};

static const char usage_text[] =
        "usage: headraced [--config FILE] [--set SECTION.KEY=VALUE]...\n"
        "\n"
        "  --config FILE      read the configuration from FILE\n"
        "  --set S.K=VALUE    set one key, over the file; device.NAME.KEY=VALUE for a device\n"
        "  --check-config     check the configuration and exit\n"
        "  --dump-config      print the effective configuration and exit\n"
        "  --version          print the version and exit\n"
        "  --help             print this\n";

/* The value of option `name` at argv[*index], as "--name VALUE" or "--name=VALUE"; NULL: not that
 * option, or no value. */
static const char *option_value(char **argv, int argc, int *index, const char *name) {
        size_t length = strlen(name);
        const char *argument = argv[*index];

        if (strncmp(argument, name, length) != 0)
                return NULL;
        if (argument[length] == '=')
                return argument + length + 1;
        if (argument[length] != '\0' || *index + 1 >= argc)
                return NULL;
        return argv[++*index];
}

/* EX_OK to go on, -1 when all is done, or the exit code. */
static int arguments_parse(int argc, char **argv, struct arguments *arguments) {
        for (int i = 1; i < argc; i++) {
                const char *value;

                if (strcmp(argv[i], "--version") == 0) {
                        puts("headraced " HR_VERSION);
                        return -1;
                }
                if (strcmp(argv[i], "--help") == 0) {
                        fputs(usage_text, stdout);
                        return -1;
                }
                if (strcmp(argv[i], "--check-config") == 0) {
                        arguments->check = true;
                } else if (strcmp(argv[i], "--dump-config") == 0) {
                        arguments->dump = true;
                } else if ((value = option_value(argv, argc, &i, "--config"))) {
                        arguments->config_path = value;
                } else if ((value = option_value(argv, argc, &i, "--set"))) {
                        if (arguments->setting_count == SETTINGS_MAX) {
                                fprintf(stderr, "headraced: more than %d times --set\n",
                                        SETTINGS_MAX);
                                return EX_USAGE;
                        }
                        arguments->settings[arguments->setting_count++] = value;
                } else {
                        fprintf(stderr, "headraced: what is %s?\n%s", argv[i], usage_text);
                        return EX_USAGE;
                }
        }
        return EX_OK;
}

static hr_status config_load(const struct arguments *arguments, struct hr_config *config,
                             struct hr_diag *diag) {
        HR_TRY(hr_config_init(config, diag));
        if (arguments->config_path) {
                HR_TRY(hr_config_read_file(config, arguments->config_path, diag));
                HR_TRY(hr_config_read_fragments(config, arguments->config_path, diag));
        }
        for (int i = 0; i < arguments->setting_count; i++)
                HR_TRY(hr_config_set(config, arguments->settings[i], diag));
        return hr_config_finish(config, diag);
}

/* Graphs and plans come and go in pieces of some megabytes: memory that the kernel takes back with
 * each of them has to be faulted in and cleared anew for the next, which costs as much as the
 * work. */
static void keep_freed_memory(void) {
        (void) mallopt(M_MMAP_THRESHOLD, 32 << 20);
        (void) mallopt(M_TRIM_THRESHOLD, 64 << 20);
}

/* The same files and settings once more, at SIGHUP. */
static hr_status reload(void *arg, struct hr_diag *diag, struct hr_config *ret_fresh) {
        return config_load(arg, ret_fresh, diag);
}

static int serve(const struct arguments *arguments, struct hr_config *config) {
        struct hr_diag diag = {0};
        hr_status status;

        keep_freed_memory();
        hr_journal_open(HR_JOURNAL_SOCKET);
        hr_log_set_level(config->log_level);
        status = hr_server_run(config, reload, (void *) arguments, &diag);
        if (status == HR_OK)
                return EX_OK;
        hr_log(HR_LOG_ERROR, "server", "%s reason=%s", diag.words, hr_diag_reason(&diag));
        return status == HR_E_EXISTS ? EX_CANTCREAT : 1;
}

int main(int argc, char **argv) {
        struct arguments arguments = {0};
        struct hr_config config = {0};
        struct hr_diag diag = {0};
        int code = arguments_parse(argc, argv, &arguments);

        if (code != EX_OK)
                return code < 0 ? EX_OK : code;
#ifndef __SANITIZE_ADDRESS__ /* whose search for leaks looks into the process */
        /* Tokens and weights are not for other programs' eyes; whoever debugs the daemon says
         * so. */
        if (!getenv("HEADRACE_DUMPABLE"))
                (void) prctl(PR_SET_DUMPABLE, 0);
#endif
        if (config_load(&arguments, &config, &diag) != HR_OK) {
                fprintf(stderr, "headraced: %s\n", diag.words);
                code = EX_CONFIG;
        } else if (arguments.dump) {
                hr_config_dump(&config, stdout);
        } else if (arguments.check) {
                puts("the configuration is valid");
        } else {
                code = serve(&arguments, &config);
        }
        hr_config_deinit(&config);
        return code;
}
