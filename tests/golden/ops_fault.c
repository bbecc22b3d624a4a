/* See ops_fault.h. The handler runs on whatever thread computes; it only formats into its own
 * memory and writes. (snprintf of integers and strings allocates nothing.) */
#include "tests/golden/ops_fault.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define STATUS 3

static const struct ops_run *volatile watched;

static void say(const struct ops_run *run, const void *address) {
        uint32_t k = ops_run_nearest(run, address);
        bool is_before = k != HR_TENSOR_NONE &&
                         (const uint8_t *) address < (const uint8_t *) run->buffers[k]->base;
        char words[256];
        int length;

        if (k == HR_TENSOR_NONE)
                length = snprintf(words, sizeof words,
                                  "  %s %" PRIu32 " %s: touched %p, far from its tensors\n",
                                  run->family->name, run->item->id, run->item->op, address);
        else
                length =
                        snprintf(words, sizeof words,
                                 "  %s %" PRIu32 " %s: touched memory %s tensor %" PRIu32 " (%s)\n",
                                 run->family->name, run->item->id, run->item->op,
                                 is_before ? "before" : "behind", k, run->item->tensors[k].op_name);
        if (length > 0 && write(STDOUT_FILENO, words, (size_t) length) < 0)
                _exit(STATUS);
}

static void on_fault(int number, siginfo_t *info, void *context) {
        (void) number;
        (void) context;
        if (watched)
                say(watched, info->si_addr);
        _exit(STATUS);
}

void ops_fault_watch(const struct ops_run *run) {
        static bool is_installed;
        struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};

        watched = run;
        if (is_installed)
                return;
        (void) sigemptyset(&action.sa_mask);
        (void) sigaction(SIGSEGV, &action, NULL);
        (void) sigaction(SIGBUS, &action, NULL);
        is_installed = true;
}
