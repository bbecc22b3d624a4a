/* See pins.h. */
#include "backends/cuda/pins.h"

#include <stdlib.h>
#include <unistd.h>

/* Of one call of the driver, which takes milliseconds for it. */
#define PIECE_BYTES (UINT64_C(32) << 20)

struct pin {
        struct hr_buffer_pin pin;
        struct hr_device *device;
        struct cuda_gpu *gpu; /* the device's */
        struct pin *next;
        uint8_t *first; /* whole pages, in pieces of PIECE_BYTES from here on */
        uint64_t bytes;
        atomic_uint_fast64_t done; /* bytes that are locked */
        atomic_bool is_ending;
        struct hr_thread thread;
};

static struct {
        pthread_mutex_t lock; /* of the list */
        struct pin *first;
        atomic_uint count;
        pthread_mutex_t turn; /* of whoever locks memory */
} pins = { .lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_MUTEX_INITIALIZER };

/* ---- Looking up ------------------------------------------------------------------------------ */

/* Locked bytes from the address on. Lock held. */
static uint64_t bytes_locked(const struct pin *pin, const void *address) {
        const uint8_t *at = address;
        uint64_t done = atomic_load_explicit(&pin->done, memory_order_acquire);

        if (at < pin->first || (uint64_t) (at - pin->first) >= done ||
            atomic_load(&pin->gpu->lost))
                return 0;
        return done - (uint64_t) (at - pin->first);
}

static uint64_t look_up(const void *address, uint64_t *ret_left) {
        uint64_t found = 0;

        if (atomic_load_explicit(&pins.count, memory_order_relaxed) == 0)
                return 0;
        (void) pthread_mutex_lock(&pins.lock);
        for (const struct pin *pin = pins.first; pin && !found; pin = pin->next) {
                found = bytes_locked(pin, address);
                if (found)
                        *ret_left = PIECE_BYTES - (uint64_t) ((const uint8_t *) address -
                                                              pin->first) % PIECE_BYTES;
        }
        (void) pthread_mutex_unlock(&pins.lock);
        return found;
}

uint64_t cuda_pins_piece(const void *address, uint64_t bytes) {
        uint64_t left = 0, found = look_up(address, &left);

        return HR_MIN(HR_MIN(found, left), bytes);
}

bool cuda_pins_hold(const void *address, uint64_t bytes) {
        uint64_t left = 0;

        return look_up(address, &left) >= bytes;
}

/* ---- Locking --------------------------------------------------------------------------------- */

/* Memory that nobody may write is taken as such, where the GPU can; else the plain way is tried. */
static CUresult piece_lock(const struct pin *pin, uint8_t *at, uint64_t bytes) {
        const struct cuda_syms *cu = pin->gpu->cu;
        CUresult result = CUDA_ERROR_NOT_SUPPORTED;
        int can = 0;

        if (cu->cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
                                     pin->gpu->device) == CUDA_SUCCESS &&
            can)
                result = cu->cuMemHostRegister(at, (size_t) bytes,
                                               CU_MEMHOSTREGISTER_PORTABLE |
                                                       CU_MEMHOSTREGISTER_READ_ONLY);
        if (result != CUDA_SUCCESS && !cuda_result_is_sticky(result))
                result = cu->cuMemHostRegister(at, (size_t) bytes, CU_MEMHOSTREGISTER_PORTABLE);
        return result;
}

/* False: the buffer goes. */
static bool turn_take(const struct pin *pin) {
        while (!atomic_load(&pin->is_ending)) {
                if (pthread_mutex_trylock(&pins.turn) == 0)
                        return true;
                (void) usleep(1000);
        }
        return false;
}

static void pin_main(void *arg) {
        struct pin *pin = arg;

        for (uint64_t at = 0; at < pin->bytes && turn_take(pin);) {
                uint64_t piece = HR_MIN(pin->bytes - at, PIECE_BYTES);
                hr_status status;

                status = cuda_gpu_enter(pin->gpu, NULL);
                if (status == HR_OK)
                        status = cuda_gpu_check(pin->gpu, piece_lock(pin, pin->first + at, piece),
                                                "locking memory", NULL);
                (void) pthread_mutex_unlock(&pins.turn);
                if (status != HR_OK) {
                        atomic_fetch_add(&pin->device->pins_failed, 1);
                        return;
                }
                at += piece;
                atomic_store_explicit(&pin->done, at, memory_order_release);
                atomic_fetch_add(&pin->device->pinned_bytes, piece);
        }
}

static void pin_release(struct hr_buffer_pin *base) {
        struct pin *pin = HR_CONTAINER_OF(base, struct pin, pin);
        struct pin **at = &pins.first;
        uint64_t done;

        atomic_store(&pin->is_ending, true);
        hr_thread_join(&pin->thread);
        (void) pthread_mutex_lock(&pins.lock);
        while (*at != pin)
                at = &(*at)->next;
        *at = pin->next;
        atomic_fetch_sub(&pins.count, 1);
        (void) pthread_mutex_unlock(&pins.lock);
        done = atomic_load(&pin->done);
        (void) pin->gpu->cu->cuCtxSetCurrent(pin->gpu->context);
        for (uint64_t i = 0; i < done; i += PIECE_BYTES)
                (void) pin->gpu->cu->cuMemHostUnregister(pin->first + i);
        atomic_fetch_sub(&pin->device->pinned_bytes, done);
        (void) hr_device_unref(pin->device);
        free(pin);
}

/* What the device's other buffers leave of the limit. Lock held. */
static uint64_t bytes_left(const struct hr_device *device, uint64_t limit) {
        for (const struct pin *pin = pins.first; pin; pin = pin->next)
                if (pin->device == device)
                        limit -= HR_MIN(limit, pin->bytes);
        return limit;
}

void cuda_pins_add(struct hr_device *device, struct cuda_gpu *gpu, struct hr_buffer *buffer,
                   uint64_t limit) {
        const uint64_t page = (uint64_t) sysconf(_SC_PAGESIZE);
        const uint64_t base = (uint64_t) (uintptr_t) buffer->host_base;
        uint64_t first = (base + page - 1) / page * page;
        uint64_t end = (base + buffer->bytes) / page * page;
        struct pin *pin;

        for (struct hr_buffer_pin *known = buffer->pins; known; known = known->next)
                if (known->release == pin_release)
                        return;
        pin = first < end ? calloc(1, sizeof *pin) : NULL;
        if (!pin)
                return;
        *pin = (struct pin) { .pin.release = pin_release,
                              .device = hr_device_ref(device),
                              .gpu = gpu,
                              .first = (uint8_t *) buffer->host_base + (first - base) };
        (void) pthread_mutex_lock(&pins.lock);
        pin->bytes = HR_MIN(end - first, bytes_left(device, limit) / page * page);
        pin->next = pins.first;
        pins.first = pin;
        atomic_fetch_add(&pins.count, 1);
        (void) pthread_mutex_unlock(&pins.lock);
        pin->pin.next = buffer->pins;
        buffer->pins = &pin->pin;
        if (pin->bytes && hr_thread_start(&pin->thread, "cuda-pin", pin_main, pin, NULL) != HR_OK)
                atomic_fetch_add(&device->pins_failed, 1);
}
