/* See ops_fault.h. The handler runs on whatever thread computes; it only formats into its own
 * memory and writes. (snprintf of integers and strings allocates nothing.) */
#include "tests/golden/ops_fault.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define STATUS 3

static const struct ops_run *volatile watched;

static void say(const struct ops_run *run, int number, const void *address) {
        char words[256];
        int length = snprintf(words, sizeof words, "  %s %" PRIu32 " %s%s: ", run->family->name,
                              run->item->id, run->item->op, run->note);
        uint32_t k = ops_run_nearest(run, address);
        size_t room;

        if (length < 0 || (size_t) length >= sizeof words)
                return;
        room = sizeof words - (size_t) length;
        if (number == SIGFPE)
                length += snprintf(words + length, room, "a division that has no result\n");
        else if (k == HR_TENSOR_NONE)
                length += snprintf(words + length, room, "touched %p, far from its tensors\n",
                                   address);
        else
                length += snprintf(words + length, room,
                                   "touched memory %s tensor %" PRIu32 " (%s)\n",
                                   (const uint8_t *) address <
                                                   (const uint8_t *) run->buffers[k]->base
                                           ? "before"
                                           : "behind",
                                   k, run->item->tensors[k].op_name);
        if (write(STDOUT_FILENO, words, HR_MIN((size_t) length, sizeof words)) < 0)
                _exit(STATUS);
}

static void on_fault(int number, siginfo_t *info, void *context) {
        (void) context;
        if (watched)
                say(watched, number, info->si_addr);
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
        (void) sigaction(SIGFPE, &action, NULL);
        is_installed = true;
}
