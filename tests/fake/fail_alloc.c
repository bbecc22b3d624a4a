/* See fail_alloc.h. */
#include "tests/fake/fail_alloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t countdown;
static bool fired;
static int64_t live;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *memory);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_reallocarray(void *memory, size_t count, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **ret_memory, size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);
void __wrap_free(void *memory);

void fail_alloc_at(uint64_t n) {
        countdown = n;
        fired = false;
}

bool fail_alloc_fired(void) {
        return fired;
}

int64_t fail_alloc_live(void) {
        return live;
}

static bool is_due(void) {
        if (countdown == 0 || --countdown > 0)
                return false;
        fired = true;
        errno = ENOMEM;
        return true;
}

static void *counted(void *memory) {
        live += memory != NULL;
        return memory;
}

void *__wrap_malloc(size_t size) {
        return is_due() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
        return is_due() ? NULL : counted(__real_calloc(count, size));
}

void *__wrap_realloc(void *memory, size_t size) {
        void *moved;

        if (is_due())
                return NULL;
        moved = __real_realloc(memory, size);
        live += !memory && moved;
        return moved;
}

void *__wrap_reallocarray(void *memory, size_t count, size_t size) {
        return size > 0 && count > SIZE_MAX / size ? NULL : __wrap_realloc(memory, count * size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
        return is_due() ? NULL : counted(__real_aligned_alloc(alignment, size));
}

int __wrap_posix_memalign(void **ret_memory, size_t alignment, size_t size) {
        void *memory =
                __wrap_aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);

        if (!memory)
                return ENOMEM;
        *ret_memory = memory;
        return 0;
}

char *__wrap_strndup(const char *text, size_t size) {
        size_t bytes = strnlen(text, size);
        char *copy = __wrap_malloc(bytes + 1);

        if (copy) {
                memcpy(copy, text, bytes);
                copy[bytes] = '\0';
        }
        return copy;
}

char *__wrap_strdup(const char *text) {
        return __wrap_strndup(text, strlen(text));
}

void __wrap_free(void *memory) {
        live -= memory != NULL;
        __real_free(memory);
}
