/* The only C++ of this tree: Gloo's classes behind mesh.h. The rendezvous is the core's exchange of blobs: Gloo's own stores are not
 * used, only the addresses of its pairs. */
#include "backends/gloo/mesh.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace
{

/* Time is the core's business, and a time-out of Gloo's own would close every pair. */
const milliseconds never = hours(24 * 365);
const milliseconds connect_timeout = seconds(2); /* Gloo waits five times as long */

class Joined : public gloo::Context
{
  public:
    Joined(int own, int ranks, std::shared_ptr<gloo::transport::Device> device) : gloo::Context(own, ranks)
    {
        device_ = device;
        transportContext_ = device->createContext(own, ranks);
        transportContext_->setTimeout(connect_timeout);
        setTimeout(never);
    }

    gloo::transport::Context &pairs()
    {
        return *transportContext_;
    }
};

template <typename Work> bool guarded(char *why, Work work)
{
    try {
        work();
        return true;
    } catch (const std::exception &e) {
        /* Gloo begins with the place in its own source: "[/build/.../pair.cc:123] text" */
        const char *text = e.what(), *bracket = text[0] == '[' ? std::strchr(text, ']') : nullptr;
        std::snprintf(why, MESH_WHY_BYTES, "%s", bracket && bracket[1] ? bracket + 2 : text);
    } catch (...) {
        std::snprintf(why, MESH_WHY_BYTES, "an exception of unknown type");
    }
    for (char *at = why; *at; at++)
        if (*at == '\n')
            *at = ' ';
    return false;
}

} // namespace

struct mesh_device {
    std::shared_ptr<gloo::transport::Device> device;
};

struct mesh {
    std::shared_ptr<Joined> context;
    uint32_t rank, size;
    std::mutex mutex;
    bool closing = false;
    std::set<gloo::transport::UnboundBuffer *> waits; /* under the mutex */
};

namespace
{

/* A buffer that somebody waits on: mesh_close finds it. */
class Waited
{
  public:
    Waited(struct mesh *mesh, void *memory, size_t bytes)
        : mesh_(mesh), buffer_(mesh->context->createUnboundBuffer(memory, bytes))
    {
        std::lock_guard<std::mutex> lock(mesh_->mutex);
        if (mesh_->closing)
            throw std::runtime_error("the group is being closed");
        mesh_->waits.insert(buffer_.get());
    }
    ~Waited()
    {
        std::lock_guard<std::mutex> lock(mesh_->mutex);
        mesh_->waits.erase(buffer_.get());
    }
    Waited(const Waited &) = delete;
    Waited &operator=(const Waited &) = delete;
    gloo::transport::UnboundBuffer *operator->()
    {
        return buffer_.get();
    }

  private:
    struct mesh *mesh_;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

void ended(bool well)
{
    if (!well)
        throw std::runtime_error("the group is being closed");
}

} // namespace

bool mesh_device_create(const char *interface, const char *address, struct mesh_device **device_p, char why[MESH_WHY_BYTES])
{
    return guarded(why, [&] {
        auto device = std::make_unique<mesh_device>();
        gloo::transport::tcp::attr attr;
        if (interface[0])
            attr.iface = interface;
        else
            attr.hostname = address;
        device->device = gloo::transport::tcp::CreateDevice(attr);
        *device_p = device.release();
    });
}

void mesh_device_destroy(struct mesh_device *device)
{
    delete device;
}

bool mesh_create(struct mesh_device *device, uint32_t rank, uint32_t size, struct mesh **mesh_p, char why[MESH_WHY_BYTES])
{
    return guarded(why, [&] {
        auto mesh = std::make_unique<struct mesh>();
        mesh->rank = rank;
        mesh->size = size;
        mesh->context = std::make_shared<Joined>(static_cast<int>(rank), static_cast<int>(size), device->device);
        for (uint32_t i = 0; i < size; i++)
            if (i != rank)
                mesh->context->pairs().createPair(static_cast<int>(i));
        *mesh_p = mesh.release();
    });
}

/* For each rank in order: a length, and so many bytes. */
bool mesh_offer(struct mesh *mesh, uint8_t *blob, size_t room, size_t *bytes_p, char why[MESH_WHY_BYTES])
{
    return guarded(why, [&] {
        size_t used = 0;
        for (uint32_t i = 0; i < mesh->size; i++) {
            std::vector<char> address;
            if (i != mesh->rank)
                address = mesh->context->pairs().getPair(static_cast<int>(i))->address().bytes();
            uint32_t length = static_cast<uint32_t>(address.size());
            if (room - used < sizeof length + length)
                throw std::runtime_error("the addresses of " + std::to_string(mesh->size) + " ranks do not fit");
            std::memcpy(blob + used, &length, sizeof length);
            if (length)
                std::memcpy(blob + used + sizeof length, address.data(), length);
            used += sizeof length + length;
        }
        *bytes_p = used;
    });
}

bool mesh_connect(struct mesh *mesh, uint32_t rank, const void *blob, size_t bytes, char why[MESH_WHY_BYTES])
{
    return guarded(why, [&] {
        const char *at = static_cast<const char *>(blob), *end = at + bytes;
        uint32_t length = 0;
        for (uint32_t i = 0; i <= mesh->rank; i++) {
            at += length;
            if (static_cast<size_t>(end - at) < sizeof length)
                throw std::runtime_error("the offer of rank " + std::to_string(rank) + " is too short");
            std::memcpy(&length, at, sizeof length);
            at += sizeof length;
            if (static_cast<size_t>(end - at) < length)
                throw std::runtime_error("the offer of rank " + std::to_string(rank) + " is too short");
        }
        auto &pair = mesh->context->pairs().getPair(static_cast<int>(rank));
        if (length != pair->address().bytes().size()) /* Gloo copies them into a struct unchecked */
            throw std::runtime_error("the offer of rank " + std::to_string(rank) + " holds no address of Gloo's");
        pair->connect(std::vector<char>(at, at + length));
    });
}

bool mesh_send(struct mesh *mesh, uint32_t rank, uint64_t slot, const void *from, size_t bytes, char why[MESH_WHY_BYTES])
{
    return guarded(why, [&] {
        Waited buffer(mesh, const_cast<void *>(from), bytes);
        buffer->send(static_cast<int>(rank), slot);
        ended(buffer->waitSend(never));
    });
}

bool mesh_recv(struct mesh *mesh, uint32_t rank, uint64_t slot, void *to, size_t bytes, char why[MESH_WHY_BYTES])
{
    return guarded(why, [&] {
        Waited buffer(mesh, to, bytes);
        buffer->recv(static_cast<int>(rank), slot);
        ended(buffer->waitRecv(never));
    });
}

/* The pairs stay: Gloo's way to close one resets its connection, and a peer that has not accepted it yet ends its process at that (it asks
 * the socket for an address that it no longer has). They are closed in the ordinary way when they are destroyed. */
void mesh_close(struct mesh *mesh)
{
    std::lock_guard<std::mutex> lock(mesh->mutex);
    mesh->closing = true;
    for (auto *buffer : mesh->waits) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
    }
}

void mesh_destroy(struct mesh *mesh)
{
    delete mesh;
}
