/* The only C++ of this tree: Gloo's classes behind mesh.h. The rendezvous is the core's exchange of blobs: of Gloo only the
 * addresses of its pairs are used, not its stores.
 *
 * Gloo trusts everybody who connects to its ports, and one thread of Gloo (the device's thread) serves the sockets of all
 * groups, so that an exception in that thread ends the process. It throws when a connection is reset before it is accepted,
 * when bytes are malformed, and when the system refuses a write. And when a pair is cut in the middle of a message, the stranger
 * that waits for the rest is not woken. So every pair here is a GuardedPair: it accepts only a connection that shows the
 * group's token, an exception fails that pair alone, and the failure of a pair wakes those who wait on it.
 */
#include "backends/gloo/mesh.h"

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gloo/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/unbound_buffer.h>

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace tcp = gloo::transport::tcp;

namespace
{

/* The core has the deadlines; a time-out of Gloo would close every pair. */
const milliseconds never = hours(24 * 365);
const milliseconds connect_timeout = seconds(2); /* Gloo waits five times as long */

/* Runs `work`. False: it threw an exception, whose text is in why. */
template <typename Work> bool guarded(char *why, Work work)
{
    try {
        work();
        return true;
    } catch (const std::exception &e) {
        /* Gloo's texts begin with the place in its source: "[/build/.../pair.cc:123] text" */
        const char *text = e.what(), *bracket = text[0] == '[' ? std::strchr(text, ']') : nullptr;
        std::snprintf(why, MESH_WHY_BYTES, "%s", bracket && bracket[1] ? bracket + 2 : text);
    } catch (...) {
        std::snprintf(why, MESH_WHY_BYTES, "Gloo threw an exception of unknown type");
    }
    for (char *at = why; *at; at++)
        if (*at == '\n')
            *at = ' ';
    return false;
}

std::string text_of(std::exception_ptr thrown)
{
    char why[MESH_WHY_BYTES];

    guarded(why, [&] { std::rethrow_exception(thrown); });
    return why;
}

/* Pauses the device's thread and lets it continue. It does so by a descriptor that is registered once, because Gloo waits up
 * to 10 ms for its thread when a descriptor is unregistered. */
class ThreadPause : public tcp::Handler
{
  public:
    explicit ThreadPause(tcp::Device &device) : device_(device), fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))
    {
        if (fd_ < 0)
            throw std::runtime_error("no descriptor is left");
        device_.registerDescriptor(fd_, EPOLLIN, this);
    }
    ~ThreadPause() override
    {
        device_.unregisterDescriptor(fd_, this);
        (void)::close(fd_);
    }
    ThreadPause(const ThreadPause &) = delete;
    ThreadPause &operator=(const ThreadPause &) = delete;
    void stop() /* returns when the thread is paused */
    {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return !wanted_ && !paused_; }); /* another thread may have paused it */
        wanted_ = true;
        (void)eventfd_write(fd_, 1);
        changed_.wait(lock, [&] { return paused_; });
    }
    void release()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        wanted_ = false;
        changed_.notify_all();
    }
    void handleEvents(int) override
    {
        eventfd_t ignored;
        std::unique_lock<std::mutex> lock(mutex_);
        (void)eventfd_read(fd_, &ignored);
        if (!wanted_)
            return;
        paused_ = true;
        changed_.notify_all();
        changed_.wait(lock, [&] { return !wanted_; });
        paused_ = false;
        changed_.notify_all();
    }

  private:
    tcp::Device &device_;
    int fd_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool wanted_ = false, paused_ = false;
};

/* The device's thread is paused while an object of this class exists. */
class PausedThread
{
  public:
    explicit PausedThread(ThreadPause &pause) : pause_(pause)
    {
        pause_.stop();
    }
    ~PausedThread()
    {
        pause_.release();
    }
    PausedThread(const PausedThread &) = delete;
    PausedThread &operator=(const PausedThread &) = delete;

  private:
    ThreadPause &pause_;
};

/* Compares two values in a time that does not depend on where they differ. */
bool same_secret(const void *a, const void *b, size_t bytes)
{
    const volatile unsigned char *left = static_cast<const volatile unsigned char *>(a),
                                 *right = static_cast<const volatile unsigned char *>(b);
    unsigned char difference = 0;

    for (size_t i = 0; i < bytes; i++)
        difference |= static_cast<unsigned char>(left[i] ^ right[i]);
    return difference == 0;
}

/* The first bytes that the connecting end sends. */
struct Hello {
    uint8_t token[16];
    uint64_t epoch;
    uint32_t from, to;
};
static_assert(sizeof(Hello) == 32, "the struct has no padding");

class GuardedPair;

/* A connection to a listening pair that has not shown a Hello yet. */
class Stranger : public tcp::Handler
{
  public:
    Stranger(GuardedPair &pair, int sock) : fd(sock), pair_(pair) {}
    ~Stranger() override
    {
        if (fd >= 0)
            (void)::close(fd);
    }
    Stranger(const Stranger &) = delete;
    Stranger &operator=(const Stranger &) = delete;
    void handleEvents(int events) override;

    int fd; /* -1: it was dropped */

  private:
    GuardedPair &pair_;
};

/* Order of locks: busy_, m_ (Gloo's), the mesh's, a buffer's. No thread holds m_ while it waits for the device's thread, except
 * in connect (before the pair is connected) and in the destructor; the device's thread therefore only tries to lock m_. */
class GuardedPair : public tcp::Pair
{
  public:
    GuardedPair(tcp::Context *context, tcp::Device *device, int rank, milliseconds timeout, struct mesh *mesh);
    ~GuardedPair() override;
    GuardedPair(const GuardedPair &) = delete;
    GuardedPair &operator=(const GuardedPair &) = delete;
    void connect(const std::vector<char> &bytes) override;
    void handleEvents(int events) override;
    void read_hello(Stranger &stranger);

  protected:
    void changeState(state next) noexcept override;

  private:
    bool accept_stranger();
    void drop(Stranger &stranger);
    void adopt(Stranger &stranger);
    Hello hello_of(int from, int to) const;

    struct mesh *const mesh_;
    std::mutex busy_; /* protects the fields below; the device's thread holds it while it is in this class */
    bool closing_ = false;
    std::list<std::unique_ptr<Stranger>> strangers_;
    std::list<std::unique_ptr<Stranger>> dropped_; /* the device's thread may still have an event for them */
};

constexpr size_t max_strangers = 16; /* the oldest one makes room for the next */
constexpr int backlog = 64;

class GroupContext : public gloo::Context
{
  public:
    GroupContext(int own, int ranks, std::shared_ptr<gloo::transport::Device> device, struct mesh *mesh);
    gloo::transport::Context &pairs()
    {
        return *transportContext_;
    }
};

class PairContext : public tcp::Context
{
  public:
    PairContext(std::shared_ptr<tcp::Device> device, int own, int ranks, struct mesh *mesh)
        : tcp::Context(device, own, ranks), mesh_(mesh)
    {
    }
    std::unique_ptr<gloo::transport::Pair> &createPair(int other) override
    {
        pairs_[static_cast<size_t>(other)] = std::make_unique<GuardedPair>(this, device_.get(), other, getTimeout(), mesh_);
        return pairs_[static_cast<size_t>(other)];
    }

  private:
    struct mesh *const mesh_;
};

GroupContext::GroupContext(int own, int ranks, std::shared_ptr<gloo::transport::Device> device, struct mesh *mesh)
    : gloo::Context(own, ranks)
{
    device_ = device;
    transportContext_ = std::make_shared<PairContext>(std::static_pointer_cast<tcp::Device>(device), own, ranks, mesh);
    transportContext_->setTimeout(connect_timeout);
    setTimeout(never);
}

} // namespace

struct mesh_device {
    std::shared_ptr<gloo::transport::Device> device;
    std::unique_ptr<ThreadPause> pause;
    std::mutex mutex;
    std::condition_variable more;
    std::list<struct mesh *> discarded; /* with the mutex; the reaper destroys them */
    bool ending = false;                /* with the mutex */
    pthread_t reaper;
};

struct mesh {
    struct mesh_device *device;
    uint32_t rank, size;
    struct mesh_id id;
    std::mutex mutex;
    bool closing = false;
    std::map<gloo::transport::UnboundBuffer *, uint32_t> waits; /* with the mutex; by the rank on which they wait */
    std::map<uint32_t, std::string> broken;                     /* with the mutex; ranks whose pairs have failed, and why */
    std::shared_ptr<GroupContext> context;                            /* destroyed first, because its thread uses the fields above */
};

namespace
{

/* Records that a pair was closed, and wakes those who wait on it, which Gloo does not. */
void pair_broken(struct mesh &mesh, uint32_t rank, const std::string &why)
{
    std::lock_guard<std::mutex> lock(mesh.mutex);
    mesh.broken.emplace(rank, why);
    for (auto &wait : mesh.waits)
        if (wait.second == rank) {
            wait.first->abortWaitRecv();
            wait.first->abortWaitSend();
        }
}

void Stranger::handleEvents(int)
{
    pair_.read_hello(*this);
}

GuardedPair::GuardedPair(tcp::Context *context, tcp::Device *device, int rank, milliseconds timeout, struct mesh *mesh)
    : tcp::Pair(context, device, rank, timeout), mesh_(mesh)
{
    std::lock_guard<std::mutex> lock(m_);
    if (state_ == LISTENING) {
        (void)fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
        (void)::listen(fd_, backlog);
    }
}

/* Closes the pair here, because Gloo's destructor would close it when changeState is no longer overridden. */
GuardedPair::~GuardedPair()
{
    {
        std::lock_guard<std::mutex> lock(busy_);
        closing_ = true;
    }
    {
        std::lock_guard<std::mutex> lock(m_);
        if (state_ != CLOSED)
            tcp::Pair::changeState(CLOSED);
    }
    for (auto &stranger : strangers_)
        device_->unregisterDescriptor(stranger->fd, stranger.get()); /* waits until the device's thread has no event for it */
    if (strangers_.empty() && !dropped_.empty()) {
        PausedThread wait(*mesh_->device->pause);
    }
}

Hello GuardedPair::hello_of(int from, int to) const
{
    Hello hello;

    std::memcpy(hello.token, mesh_->id.token, sizeof hello.token);
    hello.epoch = mesh_->id.epoch;
    hello.from = static_cast<uint32_t>(from);
    hello.to = static_cast<uint32_t>(to);
    return hello;
}

void GuardedPair::connect(const std::vector<char> &bytes)
{
    tcp::Pair::connect(bytes);
    std::lock_guard<std::mutex> lock(m_);
    Hello hello = hello_of(static_cast<int>(mesh_->rank), rank_);
    throwIfException();
    if (is_client_ && ::send(fd_, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(sizeof hello))
        signalAndThrowException("the peer closed the connection at once");
}

void GuardedPair::changeState(state next) noexcept
{
    tcp::Pair::changeState(next);
    if (next != CLOSED)
        return;
    try {
        pair_broken(*mesh_, static_cast<uint32_t>(rank_), ex_ ? text_of(ex_) : "the connection was closed");
    } catch (...) { /* without memory for the text, stall_timeout ends the transfers */
    }
}

void GuardedPair::handleEvents(int events)
{
    char why[MESH_WHY_BYTES];

    std::lock_guard<std::mutex> busy(busy_);
    if (closing_ || accept_stranger() || guarded(why, [&] { tcp::Pair::handleEvents(events); }))
        return;
    std::lock_guard<std::mutex> lock(m_);
    if (!ex_) /* otherwise Gloo has recorded the failure already */
        signalException(std::string(why));
}

/* Accepts a connection if the pair listens. False: it is connected, or connecting. The device's thread, with busy_. */
bool GuardedPair::accept_stranger()
{
    std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
    if (!lock)
        return true; /* epoll reports the socket again */
    if (state_ != LISTENING)
        return false;
    dropped_.clear();
    int fd = ::accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC), whole = sizeof(Hello);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            if (!strangers_.empty())
                drop(*strangers_.front()); /* this frees a descriptor for the next one */
            else
                (void)usleep(10000); /* the connection stays in the listener's queue, and the socket stays readable */
        }
        return true;
    }
    (void)::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &whole, sizeof whole);
    char why[MESH_WHY_BYTES];
    (void)guarded(why, [&] {
        auto stranger = std::make_unique<Stranger>(*this, fd);
        if (strangers_.size() == max_strangers)
            drop(*strangers_.front());
        device_->registerDescriptor(fd, EPOLLIN, stranger.get());
        strangers_.push_back(std::move(stranger));
    });
    return true;
}

/* Closes the connection of a stranger. The device's thread, with busy_. */
void GuardedPair::drop(Stranger &stranger)
{
    device_->unregisterDescriptor(stranger.fd, &stranger);
    (void)::close(stranger.fd);
    stranger.fd = -1;
    for (auto at = strangers_.begin(); at != strangers_.end(); ++at)
        if (at->get() == &stranger) {
            dropped_.splice(dropped_.end(), strangers_, at);
            return;
        }
}

void GuardedPair::read_hello(Stranger &stranger)
{
    Hello hello, expected = hello_of(rank_, static_cast<int>(mesh_->rank));
    char why[MESH_WHY_BYTES];

    std::lock_guard<std::mutex> busy(busy_);
    if (closing_ || stranger.fd < 0)
        return;
    std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
    if (!lock)
        return; /* epoll reports the socket again */
    ssize_t n = ::recv(stranger.fd, &hello, sizeof hello, MSG_PEEK | MSG_DONTWAIT);
    bool good = n == static_cast<ssize_t>(sizeof hello) && same_secret(&hello, &expected, sizeof hello);
    (void)guarded(why, [&] {
        if (good && state_ == LISTENING)
            adopt(stranger);
        else if (n >= 0 || (errno != EAGAIN && errno != EINTR))
            drop(stranger);
    });
}

/* Makes the stranger's connection the pair's, in place of the listening socket. (Gloo does so with the first connection that
 * it accepts.) The caller holds busy_ and m_. */
void GuardedPair::adopt(Stranger &stranger)
{
    Hello hello;
    int fd = ::dup(stranger.fd), one = 1;

    if (fd < 0)
        throw std::runtime_error("no descriptor is left");
    (void)::recv(fd, &hello, sizeof hello, MSG_DONTWAIT);
    (void)::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    while (!strangers_.empty())
        drop(*strangers_.front());
    device_->unregisterDescriptor(fd_, this);
    (void)::close(fd_);
    fd_ = fd;
    try {
        handleConnected();
    } catch (...) {
        (void)::close(fd_);
        fd_ = -1;
        signalException(std::current_exception());
    }
}

/* A buffer on which a caller waits, and which mesh_close and pair_broken can therefore wake. */
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
        device->pause = std::make_unique<ThreadPause>(static_cast<tcp::Device &>(*device->device));
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
    return guarded(why, [&] {
        /* An incomplete mesh is destroyed by the reaper, too. */
        std::unique_ptr<struct mesh, void (*)(struct mesh *)> mesh(new struct mesh, mesh_discard);
        mesh->device = device;
        mesh->rank = rank;
        mesh->size = size;
        mesh->id = *id;
        mesh->context = std::make_shared<GroupContext>(static_cast<int>(rank), static_cast<int>(size), device->device, mesh.get());
        PausedThread while_pairs_are_created(*device->pause); /* a pair already listens while its base class is constructed */
        for (uint32_t i = 0; i < size; i++)
            if (i != rank)
                mesh->context->pairs().createPair(static_cast<int>(i));
        *mesh_p = mesh.release();
    });
}

/* The blob has for each rank, in order, a length and an address of that length. */
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
        if (length != pair->address().bytes().size()) /* Gloo copies the bytes into a struct without checking their number */
            throw std::runtime_error("the offer of rank " + std::to_string(rank) + " contains no address of Gloo");
        pair->connect(std::vector<char>(at, at + length));
    });
}

bool mesh_send(struct mesh *mesh, uint32_t rank, uint64_t slot, const void *from, size_t bytes, char why[MESH_WHY_BYTES])
{
    return guarded(why, [&] {
        WaitedBuffer buffer(mesh, rank, const_cast<void *>(from), bytes);
        buffer->send(static_cast<int>(rank), slot);
        buffer.ended(buffer->waitSend(never));
    });
}

bool mesh_recv(struct mesh *mesh, uint32_t rank, uint64_t slot, void *to, size_t bytes, char why[MESH_WHY_BYTES])
{
    return guarded(why, [&] {
        WaitedBuffer buffer(mesh, rank, to, bytes);
        buffer->recv(static_cast<int>(rank), slot);
        buffer.ended(buffer->waitRecv(never));
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
