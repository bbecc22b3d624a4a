#include "core/mpsc.h"
#include "core/thread.h"
#include "tests/harness.h"

#include <sched.h>

#define PRODUCERS 4
#define EACH 20000

struct item {
        struct hr_mpsc_link link;
        int producer, number;
};

struct producer {
        struct hr_thread thread;
        struct hr_mpsc *queue;
        struct item *items;
};

static void produce(void *arg) {
        struct producer *producer = arg;

        for (int i = 0; i < EACH; i++)
                hr_mpsc_push(producer->queue, &producer->items[i].link);
}

HR_TEST(mpsc_keeps_each_producers_order_and_loses_nothing) {
        struct producer producers[PRODUCERS] = { 0 };
        int next[PRODUCERS] = { 0 };
        struct hr_diag diag = { 0 };
        struct hr_mpsc queue;

        hr_mpsc_init(&queue);
        for (int p = 0; p < PRODUCERS; p++) {
                producers[p].queue = &queue;
                producers[p].items = calloc(EACH, sizeof(struct item));
                for (int i = 0; i < EACH; i++) {
                        producers[p].items[i].producer = p;
                        producers[p].items[i].number = i;
                }
                HR_EXPECT_OK(hr_thread_start(&producers[p].thread, "producer", produce,
                                             &producers[p], &diag),
                             &diag);
        }
        for (int got = 0; got < PRODUCERS * EACH;) {
                struct hr_mpsc_link *link = hr_mpsc_pop(&queue);
                struct item *item;

                if (!link) {
                        sched_yield();
                        continue;
                }
                item = HR_CONTAINER_OF(link, struct item, link);
                HR_EXPECT_EQ(item->number, next[item->producer]);
                next[item->producer]++;
                got++;
        }
        HR_EXPECT(!hr_mpsc_pop(&queue));
        HR_EXPECT(hr_mpsc_is_empty(&queue));
        for (int p = 0; p < PRODUCERS; p++) {
                hr_thread_join(&producers[p].thread);
                free(producers[p].items);
        }
}
