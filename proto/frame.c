/*
 * The frame header: 32 bytes, little-endian, checked in full before anything else is looked at.
 *
 * Invariants: nothing here allocates, blocks or keeps state. Decoding looks at the fixed part first
 * (magic, version), then at the checksum, and only then at the fields, so that a stream which has
 * lost its place is told from a peer that breaks a rule. Bytes are assembled one by one: neither
 * the host's byte order nor the alignment of the input matters.
 *
 * The checksum is CRC-32C: by the processor's instruction where there is one, else by a table of
 * half bytes.
 */
#include "proto/frame.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#define CRC_OFFSET 28

/* The remainders of all half bytes, for the reflected polynomial 0x82F63B78. */
static const uint32_t crc_table[16] = {
        0x00000000, 0x105EC76F, 0x20BD8EDE, 0x30E349B1, 0x417B1DBC, 0x5125DAD3,
        0x61C69362, 0x7198540D, 0x82F63B78, 0x92A8FC17, 0xA24BB5A6, 0xB21572C9,
        0xC38D26C4, 0xD3D3E1AB, 0xE330A81A, 0xF36E6F75,
};

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t
crc_by_instruction(uint32_t crc, const uint8_t *bytes, size_t size) {
        uint64_t wide = crc;

        for (; size >= 8; bytes += 8, size -= 8) {
                uint64_t word;

                __builtin_memcpy(&word, bytes, sizeof word);
                wide = _mm_crc32_u64(wide, word);
        }
        crc = (uint32_t) wide;
        for (; size > 0; bytes++, size--)
                crc = _mm_crc32_u8(crc, *bytes);
        return crc;
}
#endif

static uint32_t crc_portable(const void *bytes, size_t size) {
        const uint8_t *at = bytes;
        uint32_t crc = UINT32_MAX;

        for (size_t i = 0; i < size; i++) {
                crc ^= at[i];
                crc = (crc >> 4) ^ crc_table[crc & 15U];
                crc = (crc >> 4) ^ crc_table[crc & 15U];
        }
        return ~crc;
}

uint32_t hr_crc32c_with(bool instructions, const void *bytes, size_t size) {
#if defined(__x86_64__)
        if (instructions)
                return ~crc_by_instruction(UINT32_MAX, bytes, size);
#endif
        return crc_portable(bytes, size);
}

uint32_t hr_crc32c(const void *bytes, size_t size) {
#if defined(__x86_64__)
        return hr_crc32c_with(__builtin_cpu_supports("sse4.2"), bytes, size);
#else
        return hr_crc32c_with(false, bytes, size);
#endif
}

static void put_u16(uint8_t *bytes, uint16_t value) {
        bytes[0] = (uint8_t) value;
        bytes[1] = (uint8_t) (value >> 8);
}

static void put_u32(uint8_t *bytes, uint32_t value) {
        put_u16(bytes, (uint16_t) value);
        put_u16(bytes + 2, (uint16_t) (value >> 16));
}

static void put_u64(uint8_t *bytes, uint64_t value) {
        put_u32(bytes, (uint32_t) value);
        put_u32(bytes + 4, (uint32_t) (value >> 32));
}

static uint16_t get_u16(const uint8_t *bytes) {
        return (uint16_t) (bytes[0] | (uint16_t) (bytes[1] << 8));
}

static uint32_t get_u32(const uint8_t *bytes) {
        return get_u16(bytes) | ((uint32_t) get_u16(bytes + 2) << 16);
}

static uint64_t get_u64(const uint8_t *bytes) {
        return get_u32(bytes) | ((uint64_t) get_u32(bytes + 4) << 32);
}

void hr_frame_header_encode(const struct hr_frame_header *header,
                            uint8_t ret_bytes[HR_FRAME_HEADER_BYTES]) {
        HR_ASSERT(header->type != 0);
        HR_ASSERT((header->flags & ~HR_FRAME_FLAGS_ALL) == 0);
        ret_bytes[0] = 'H';
        ret_bytes[1] = 'R';
        ret_bytes[2] = HR_FRAME_VERSION;
        ret_bytes[3] = header->type;
        put_u16(ret_bytes + 4, header->flags);
        put_u16(ret_bytes + 6, header->n_fds);
        put_u64(ret_bytes + 8, header->request_id);
        put_u32(ret_bytes + 16, header->message_bytes);
        put_u32(ret_bytes + 20, header->body_bytes);
        put_u32(ret_bytes + 24, header->timeout_ms);
        put_u32(ret_bytes + CRC_OFFSET, hr_crc32c(ret_bytes, CRC_OFFSET));
}

static hr_status header_fail_over(struct hr_diag *diag, const char *reason, const char *field,
                                  uint64_t limit, uint64_t actual) {
        hr_status status =
                hr_fail_reason(diag, HR_E_PROTOCOL, reason, "%s is %llu, at most %llu here", field,
                               (unsigned long long) actual, (unsigned long long) limit);

        if (diag) {
                diag->field = field;
                diag->limit = limit;
                diag->actual = actual;
        }
        return status;
}

hr_status hr_frame_header_decode(const uint8_t bytes[HR_FRAME_HEADER_BYTES],
                                 const struct hr_frame_limits *limits, struct hr_diag *diag,
                                 struct hr_frame_header *ret_header) {
        struct hr_frame_header header;

        if (bytes[0] != 'H' || bytes[1] != 'R')
                return hr_fail_reason(diag, HR_E_PROTOCOL, "BAD_MAGIC", "not a Headrace frame");
        if (bytes[2] != HR_FRAME_VERSION)
                return hr_fail_reason(diag, HR_E_PROTOCOL, "BAD_VERSION",
                                      "framing version %u; this side speaks %u", bytes[2],
                                      HR_FRAME_VERSION);
        if (get_u32(bytes + CRC_OFFSET) != hr_crc32c(bytes, CRC_OFFSET))
                return hr_fail_reason(diag, HR_E_PROTOCOL, "BAD_HEADER_CRC",
                                      "the header's checksum is wrong");
        header = (struct hr_frame_header){
                .type = bytes[3],
                .flags = get_u16(bytes + 4),
                .n_fds = get_u16(bytes + 6),
                .request_id = get_u64(bytes + 8),
                .message_bytes = get_u32(bytes + 16),
                .body_bytes = get_u32(bytes + 20),
                .timeout_ms = get_u32(bytes + 24),
        };
        if (header.type == 0)
                return hr_fail_reason(diag, HR_E_PROTOCOL, "BAD_TYPE", "message type 0");
        if (header.flags & ~HR_FRAME_FLAGS_ALL)
                return hr_fail_reason(diag, HR_E_PROTOCOL, "BAD_FLAGS", "unknown flags %#x",
                                      header.flags & ~HR_FRAME_FLAGS_ALL);
        if (header.request_id == 0)
                return hr_fail_reason(diag, HR_E_PROTOCOL, "BAD_ID", "request id 0");
        if (header.n_fds > limits->fds_max || (header.n_fds > 0) != !!(header.flags & HR_FRAME_FDS))
                return header_fail_over(diag, "BAD_FDS", "n_fds", limits->fds_max, header.n_fds);
        if (header.message_bytes > limits->message_bytes_max)
                return header_fail_over(diag, "MESSAGE_TOO_LONG", "message_bytes",
                                        limits->message_bytes_max, header.message_bytes);
        if (header.body_bytes > limits->body_bytes_max)
                return header_fail_over(diag, "BODY_TOO_LONG", "body_bytes", limits->body_bytes_max,
                                        header.body_bytes);
        *ret_header = header;
        return HR_OK;
}
