/* See shelf.h. */
#include "backends/cuda/shelf.h"

void cuda_shelf_put(struct cuda_shelf *shelf, const struct cuda_syms *cu, CUgraphExec exec,
                    uint64_t key) {
        uint32_t place = shelf->next++ % CUDA_SHELF_PLACES;

        if (shelf->places[place].exec)
                (void) cu->cuGraphExecDestroy(shelf->places[place].exec);
        shelf->places[place].exec = exec;
        shelf->places[place].key = key;
}

CUgraphExec cuda_shelf_take(struct cuda_shelf *shelf, uint64_t key) {
        for (uint32_t i = 0; i < CUDA_SHELF_PLACES; i++) {
                CUgraphExec exec = shelf->places[i].exec;

                if (exec && shelf->places[i].key == key) {
                        shelf->places[i].exec = NULL;
                        return exec;
                }
        }
        return NULL;
}

void cuda_shelf_clear(struct cuda_shelf *shelf, const struct cuda_syms *cu) {
        for (uint32_t i = 0; i < CUDA_SHELF_PLACES; i++) {
                if (shelf->places[i].exec)
                        (void) cu->cuGraphExecDestroy(shelf->places[i].exec);
                shelf->places[i].exec = NULL;
        }
}
