/*
 * Each test runs in a forked child under an alarm; its exit code tells passed, failed or skipped,
 * any other end (signal, sanitizer) is a failure.
 */
#include "tests/harness.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#define TESTS_MAX 4096
#define EXIT_FAILED 1
#define EXIT_SKIPPED 77

static struct {
        const char *name;
        hr_test_fn fn;
        unsigned limit_s;
} tests[TESTS_MAX];
static unsigned test_count;

void hr_test_register(const char *name, hr_test_fn fn, unsigned limit_s) {
        if (test_count == TESTS_MAX) {
                fprintf(stderr, "more than %d tests in one program\n", TESTS_MAX);
                exit(2);
        }
        tests[test_count].name = name;
        tests[test_count].fn = fn;
        tests[test_count].limit_s = limit_s;
        test_count++;
}

void hr_test_fail(const char *file, int line, const char *format, ...) {
        va_list args;

        fprintf(stdout, "    %s:%d: ", file, line);
        va_start(args, format);
        vfprintf(stdout, format, args);
        va_end(args);
        fputc('\n', stdout);
        fflush(NULL);
        _exit(EXIT_FAILED);
}

void hr_test_skip(const char *format, ...) {
        va_list args;

        fputs("    skipped: ", stdout);
        va_start(args, format);
        vfprintf(stdout, format, args);
        va_end(args);
        fputc('\n', stdout);
        fflush(NULL);
        _exit(EXIT_SKIPPED);
}

/* Returns the exit code of the child, or 128 + signal. */
static int run_forked(unsigned index) {
        int status;
        pid_t pid;

        fflush(NULL);
        pid = fork();
        if (pid < 0) {
                perror("fork");
                exit(2);
        }
        if (pid == 0) {
                /* Sanitizers make everything slower; the limit only has to end a hang. */
                alarm(tests[index].limit_s * 5);
                tests[index].fn();
                fflush(NULL);
                exit(0); /* not _exit: leak checks run at exit */
        }
        while (waitpid(pid, &status, 0) < 0) {
        }
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool is_wanted(const char *name, int argc, char **argv) {
        for (int i = 1; i < argc; i++)
                if (strcmp(argv[i], name) == 0)
                        return true;
        return argc <= 1;
}

int main(int argc, char **argv) {
        unsigned passed = 0, failed = 0, skipped = 0;
        bool here = argc > 1 && strcmp(argv[1], "-n") == 0;
        bool list = argc > 1 && strcmp(argv[1], "-l") == 0;

        for (unsigned i = 0; i < test_count; i++) {
                int code;

                if (list) {
                        puts(tests[i].name);
                        continue;
                }
                if (!is_wanted(tests[i].name, here ? argc - 1 : argc, here ? argv + 1 : argv))
                        continue;
                if (here) {
                        tests[i].fn();
                        passed++;
                        continue;
                }
                code = run_forked(i);
                if (code == 0) {
                        passed++;
                } else if (code == EXIT_SKIPPED) {
                        skipped++;
                } else {
                        failed++;
                        printf("FAILED %s (%s %d)\n", tests[i].name,
                               code > 128 ? "signal" : "exit", code > 128 ? code - 128 : code);
                }
        }
        if (!list)
                printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
        return failed ? 1 : 0;
}
