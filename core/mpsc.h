/*
 * Intrusive queue from many producers to one consumer, without locks (a Vyukov queue).
 *
 * Push: any thread, wait-free. Pop: the one consumer; it may return NULL for an instant while a
 * producer is between its two steps, so a producer signals the consumer after the push.
 */
#pragma once

#include <stdatomic.h>

#include "core/base.h"

struct hr_mpsc_link {
        _Atomic(struct hr_mpsc_link *) next;
};

struct hr_mpsc {
        _Atomic(struct hr_mpsc_link *) head; /* last pushed */
        struct hr_mpsc_link *tail;           /* next to pop */
        struct hr_mpsc_link hollow;
};

void hr_mpsc_init(struct hr_mpsc *queue);
void hr_mpsc_push(struct hr_mpsc *queue, struct hr_mpsc_link *link);
struct hr_mpsc_link *hr_mpsc_pop(struct hr_mpsc *queue);
bool hr_mpsc_is_empty(struct hr_mpsc *queue); /* consumer only */
