/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo's classes behind mesh.h. The rendezvous is the core's exchange of blobs: of Gloo only the addresses of its pairs are
 * used, not its stores. pair.hh says what the pairs add to Gloo's. This and pair.cc are the only C++ of this tree. */
#include "backends/gloo/mesh.h"

#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <pthread.h>
#include <signal.h>

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "backends/gloo/pair.hh"

/* Gloo's device. Its thread wakes a hundred times a second, so it exists only while a mesh does. */
struct running_device {
    std::shared_ptr<gloo::transport::Device> device;
    pairs::ThreadPause pause;

    explicit running_device(const gloo::transport::tcp::attr &attr)
        : device(gloo::transport::tcp::CreateDevice(attr)), pause(static_cast<gloo::transport::tcp::Device &>(*device))
    {
    }
};

struct mesh_device {
    gloo::transport::tcp::attr attr;
    std::mutex mutex;
    std::weak_ptr<running_device> running; /* with the mutex */
    std::condition_variable more;
    std::list<struct mesh *> discarded; /* with the mutex; the reaper destroys them */
    bool ending = false;                /* with the mutex */
    pthread_t reaper;
};

struct mesh final : pairs::Owner {
    struct mesh_device *device;
    std::shared_ptr<running_device> running;
    uint32_t size;
    std::mutex mutex;
    bool closing = false;
    std::map<gloo::transport::UnboundBuffer *, uint32_t> waits; /* with the mutex; by the rank on which they wait */
    std::map<uint32_t, std::string> broken;                     /* with the mutex; ranks whose pairs have failed, and why */
    std::shared_ptr<pairs::GroupContext> context; /* destroyed first, because its thread uses the fields above */

    void on_broken(uint32_t other, const std::string &why) override;
};

/* Wakes those who wait on the pair, which Gloo does not. */
void mesh::on_broken(uint32_t other, const std::string &why)
{
    std::lock_guard<std::mutex> lock(mutex);
    broken.emplace(other, why);
    for (auto &wait : waits)
        if (wait.second == other) {
            wait.first->abortWaitRecv();
            wait.first->abortWaitSend();
        }
}

namespace
{

/* A buffer on which a caller waits, and which mesh_close and on_broken can therefore wake. */
class WaitedBuffer
{
  public:
    WaitedBuffer(struct mesh *mesh, uint32_t rank, void *memory, size_t bytes)
        : mesh_(mesh), rank_(rank), buffer_(mesh->context->createUnboundBuffer(memory, bytes))
    {
        std::lock_guard<std::mutex> lock(mesh_->mutex);
        check();
        mesh_->waits.emplace(buffer_.get(), rank);
    }
    ~WaitedBuffer()
    {
        std::lock_guard<std::mutex> lock(mesh_->mutex);
        mesh_->waits.erase(buffer_.get());
    }
    WaitedBuffer(const WaitedBuffer &) = delete;
    WaitedBuffer &operator=(const WaitedBuffer &) = delete;
    gloo::transport::UnboundBuffer *operator->()
    {
        return buffer_.get();
    }
    void ended(bool well)
    {
        if (well)
            return;
        std::lock_guard<std::mutex> lock(mesh_->mutex);
        check();
        throw std::runtime_error("the operation was aborted");
    }

  private:
    void check()
    {
        auto broken = mesh_->broken.find(rank_);
        if (mesh_->closing)
            throw std::runtime_error("the group is being closed");
        if (broken != mesh_->broken.end())
            throw std::runtime_error(broken->second);
    }

    struct mesh *mesh_;
    uint32_t rank_;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

/* The thread that destroys discarded meshes. */
void *reap(void *arg)
{
    struct mesh_device *device = static_cast<struct mesh_device *>(arg);
    std::unique_lock<std::mutex> lock(device->mutex);

    for (;;) {
        device->more.wait(lock, [&] { return device->ending || !device->discarded.empty(); });
        if (device->discarded.empty())
            return nullptr;
        struct mesh *mesh = device->discarded.front();
        device->discarded.pop_front();
        lock.unlock();
        delete mesh;
        lock.lock();
    }
}

bool start_reaper(struct mesh_device *device)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&device->reaper, nullptr, reap, device);
    (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return error == 0;
}

std::shared_ptr<running_device> run(struct mesh_device *device)
{
    std::lock_guard<std::mutex> lock(device->mutex);
    auto running = device->running.lock();

    if (!running)
        device->running = running = std::make_shared<running_device>(device->attr);
    return running;
}

} // namespace

bool mesh_device_create(const char *interface, const char *address, struct mesh_device **device_p, char why[MESH_WHY_BYTES])
{
    return pairs::guarded(why, [&] {
        auto device = std::make_unique<mesh_device>();
        if (interface[0])
            device->attr.iface = interface;
        else
            device->attr.hostname = address;
        (void)run(device.get()); /* throws if the address cannot be used */
        if (!start_reaper(device.get()))
            throw std::runtime_error("the system refused to start a thread");
        *device_p = device.release();
    });
}

void mesh_device_destroy(struct mesh_device *device)
{
    {
        std::lock_guard<std::mutex> lock(device->mutex);
        device->ending = true;
    }
    device->more.notify_all();
    (void)pthread_join(device->reaper, nullptr);
    delete device;
}

bool mesh_create(struct mesh_device *device, const struct mesh_id *id, uint32_t rank, uint32_t size, struct mesh **mesh_p,
                 char why[MESH_WHY_BYTES])
{
    return pairs::guarded(why, [&] {
        /* An incomplete mesh is destroyed by the reaper, too. */
        std::unique_ptr<struct mesh, void (*)(struct mesh *)> mesh(new struct mesh, mesh_discard);
        mesh->device = device;
        mesh->running = run(device);
        mesh->pause = &mesh->running->pause;
        mesh->rank = rank;
        mesh->size = size;
        mesh->id = *id;
        mesh->context =
            std::make_shared<pairs::GroupContext>(static_cast<int>(rank), static_cast<int>(size), mesh->running->device, *mesh);
        /* A pair already listens while its base class is constructed. */
        pairs::PausedThread while_pairs_are_created(*mesh->pause);
        for (uint32_t i = 0; i < size; i++)
            if (i != rank)
                mesh->context->pairs().createPair(static_cast<int>(i));
        *mesh_p = mesh.release();
    });
}

/* The blob has for each rank, in order, a length and an address of that length. */
bool mesh_offer(struct mesh *mesh, uint8_t *blob, size_t room, size_t *bytes_p, char why[MESH_WHY_BYTES])
{
    return pairs::guarded(why, [&] {
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
    return pairs::guarded(why, [&] {
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
        if (length != pair->address().bytes().size()) /* Gloo copies the bytes into a struct without checking their number */
            throw std::runtime_error("the offer of rank " + std::to_string(rank) + " contains no address of Gloo");
        pair->connect(std::vector<char>(at, at + length));
    });
}

bool mesh_send(struct mesh *mesh, uint32_t rank, uint64_t slot, const void *from, size_t bytes, char why[MESH_WHY_BYTES])
{
    return pairs::guarded(why, [&] {
        WaitedBuffer buffer(mesh, rank, const_cast<void *>(from), bytes);
        buffer->send(static_cast<int>(rank), slot);
        buffer.ended(buffer->waitSend(pairs::never));
    });
}

bool mesh_recv(struct mesh *mesh, uint32_t rank, uint64_t slot, void *to, size_t bytes, char why[MESH_WHY_BYTES])
{
    return pairs::guarded(why, [&] {
        WaitedBuffer buffer(mesh, rank, to, bytes);
        buffer->recv(static_cast<int>(rank), slot);
        buffer.ended(buffer->waitRecv(pairs::never));
    });
}

/* The pairs stay open, because Gloo's function that closes a pair resets its connection. Their destructor closes them without
 * a reset. */
void mesh_close(struct mesh *mesh)
{
    std::lock_guard<std::mutex> lock(mesh->mutex);
    mesh->closing = true;
    for (auto &wait : mesh->waits) {
        wait.first->abortWaitRecv();
        wait.first->abortWaitSend();
    }
}

void mesh_destroy(struct mesh *mesh)
{
    delete mesh;
}

void mesh_discard(struct mesh *mesh)
{
    if (!mesh)
        return;
    mesh_close(mesh);
    struct mesh_device *device = mesh->device;
    std::lock_guard<std::mutex> lock(device->mutex);
    device->discarded.push_back(mesh);
    device->more.notify_all();
}
