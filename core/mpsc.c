/*
 * Producers swap themselves in as the head and then link their predecessor to them; between the two
 * steps the chain is broken, and pop() answers NULL. The hollow link keeps the queue non-empty.
 */
#include "core/mpsc.h"

void hr_mpsc_init(struct hr_mpsc *queue) {
        atomic_init(&queue->hollow.next, NULL);
        atomic_init(&queue->head, &queue->hollow);
        queue->tail = &queue->hollow;
}

void hr_mpsc_push(struct hr_mpsc *queue, struct hr_mpsc_link *link) {
        struct hr_mpsc_link *previous;

        atomic_store_explicit(&link->next, NULL, memory_order_relaxed);
        previous = atomic_exchange_explicit(&queue->head, link, memory_order_acq_rel);
        atomic_store_explicit(&previous->next, link, memory_order_release);
}

struct hr_mpsc_link *hr_mpsc_pop(struct hr_mpsc *queue) {
        struct hr_mpsc_link *tail = queue->tail;
        struct hr_mpsc_link *next = atomic_load_explicit(&tail->next, memory_order_acquire);

        if (tail == &queue->hollow) {
                if (!next)
                        return NULL;
                queue->tail = tail = next;
                next = atomic_load_explicit(&tail->next, memory_order_acquire);
        }
        if (next) {
                queue->tail = next;
                return tail;
        }
        if (tail != atomic_load_explicit(&queue->head, memory_order_acquire))
                return NULL; /* a producer is between its two steps */
        hr_mpsc_push(queue, &queue->hollow);
        next = atomic_load_explicit(&tail->next, memory_order_acquire);
        if (!next)
                return NULL;
        queue->tail = next;
        return tail;
}

bool hr_mpsc_is_empty(struct hr_mpsc *queue) {
        return queue->tail == &queue->hollow &&
               atomic_load_explicit(&queue->head, memory_order_acquire) == &queue->hollow;
}
