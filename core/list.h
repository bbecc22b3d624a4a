/* Intrusive doubly linked list. A zeroed link is "in no list"; a head points at itself when
 * empty. */
#pragma once

#include "core/base.h"

struct hr_list {
        struct hr_list *next, *previous;
};

static inline void hr_list_init(struct hr_list *head) {
        head->next = head->previous = head;
}

static inline bool hr_list_is_empty(const struct hr_list *head) {
        return head->next == head;
}

static inline bool hr_list_is_linked(const struct hr_list *link) {
        return link->next != NULL;
}

static inline void hr_list_append(struct hr_list *head, struct hr_list *link) {
        link->previous = head->previous;
        link->next = head;
        head->previous->next = link;
        head->previous = link;
}

static inline void hr_list_prepend(struct hr_list *head, struct hr_list *link) {
        hr_list_append(head->next, link);
}

/* Removing a link that is in no list is a no-op. */
static inline void hr_list_remove(struct hr_list *link) {
        if (!link->next)
                return;
        link->previous->next = link->next;
        link->next->previous = link->previous;
        link->next = link->previous = NULL;
}

static inline struct hr_list *hr_list_pop(struct hr_list *head) {
        struct hr_list *link = head->next;

        if (link == head)
                return NULL;
        hr_list_remove(link);
        return link;
}

#define HR_LIST_FOR_EACH(link, head)                                                               \
        for (struct hr_list *link = (head)->next, *link##_next = link->next; link != (head);       \
             link = link##_next, link##_next = link->next)
