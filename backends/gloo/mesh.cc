/* The only C++ of this tree: Gloo's classes behind mesh.h. The rendezvous is the core's exchange of blobs:
 * Gloo's own stores are not used, only the addresses of its pairs.
 *
 * Gloo trusts whoever comes to its ports, and one thread of its own serves the sockets of all groups: what
 * that thread throws ends the process. It throws where a connection is reset before it is accepted, where
 * bytes make no sense, where the system refuses a write. And of a pair that is cut in the middle of a message
 * nobody hears who waits for the rest of it. So each pair here is a Guarded one: it lets in only who shows
 * the group's token, what is thrown in it is its own failure, and whoever waits for its other end hears of
 * that.
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

/* Time is the core's business, and a time-out of Gloo's own would close every pair. */
const milliseconds never = hours(24 * 365);
const milliseconds connect_timeout = seconds(2); /* Gloo waits five times as long */

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

std::string text_of(std::exception_ptr thrown)
{
    char why[MESH_WHY_BYTES];

    guarded(why, [&] { std::rethrow_exception(thrown); });
    return why;
}

/* Stops the thread of the device, and lets it go on. The descriptor by which it does so is registered once: to
 * take one back Gloo waits for its thread, for up to 10 ms. */
class Brake : public tcp::Handler
{
  public:
    explicit Brake(tcp::Device &device) : device_(device), fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))
    {
        if (fd_ < 0)
            throw std::runtime_error("no descriptor is left");
        device_.registerDescriptor(fd_, EPOLLIN, this);
    }
    ~Brake() override
    {
        device_.unregisterDescriptor(fd_, this);
        (void)::close(fd_);
    }
    Brake(const Brake &) = delete;
    Brake &operator=(const Brake &) = delete;
    void stop() /* returns when the thread stands still */
    {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return !wanted_ && !still_; }); /* somebody else stops it now */
        wanted_ = true;
        (void)eventfd_write(fd_, 1);
        changed_.wait(lock, [&] { return still_; });
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
        still_ = true;
        changed_.notify_all();
        changed_.wait(lock, [&] { return !wanted_; });
        still_ = false;
        changed_.notify_all();
    }

  private:
    tcp::Device &device_;
    int fd_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool wanted_ = false, still_ = false;
};

/* The thread of the device stands still while one of these exists. */
class Stillness
{
  public:
    explicit Stillness(Brake &brake) : brake_(brake)
    {
        brake_.stop();
    }
    ~Stillness()
    {
        brake_.release();
    }
    Stillness(const Stillness &) = delete;
    Stillness &operator=(const Stillness &) = delete;

  private:
    Brake &brake_;
};

/* Compares two values in a time that does not tell where they differ. */
bool same_secret(const void *a, const void *b, size_t bytes)
{
    const volatile unsigned char *left = static_cast<const volatile unsigned char *>(a),
                                 *right = static_cast<const volatile unsigned char *>(b);
    unsigned char difference = 0;

    for (size_t i = 0; i < bytes; i++)
        difference |= static_cast<unsigned char>(left[i] ^ right[i]);
    return difference == 0;
}

/* What the connecting end says first. */
struct Hello {
    uint8_t token[16];
    uint64_t epoch;
    uint32_t from, to;
};
static_assert(sizeof(Hello) == 32, "as it is sent");

class Guarded;

/* Somebody at the door of a pair who has not said who it is. */
class Caller : public tcp::Handler
{
  public:
    Caller(Guarded &door, int sock) : fd(sock), door_(door) {}
    ~Caller() override
    {
        if (fd >= 0)
            (void)::close(fd);
    }
    Caller(const Caller &) = delete;
    Caller &operator=(const Caller &) = delete;
    void handleEvents(int events) override;

    int fd; /* -1: it is gone, or it was the one */

  private:
    Guarded &door_;
};

/* Order of locks: busy_, m_ (Gloo's), the mesh's, a buffer's. Nobody holds m_ while he waits for the device's
 * thread, but connect (before it is connected) and the destructor: there that thread only tries. */
class Guarded : public tcp::Pair
{
  public:
    Guarded(tcp::Context *context, tcp::Device *device, int rank, milliseconds timeout, struct mesh *mesh);
    ~Guarded() override;
    Guarded(const Guarded &) = delete;
    Guarded &operator=(const Guarded &) = delete;
    void connect(const std::vector<char> &bytes) override;
    void handleEvents(int events) override;
    void hear(Caller &caller); /* it has said something */

  protected:
    void changeState(state next) noexcept override;

  private:
    bool answer_door();
    void drop(Caller &caller);
    void adopt(Caller &caller);
    Hello hello_of(int from, int to) const;

    struct mesh *const mesh_;
    std::mutex busy_; /* of all below; held by the device's thread while it is in here */
    bool closing_ = false;
    std::list<std::unique_ptr<Caller>> callers_;
    std::list<std::unique_ptr<Caller>> gone_; /* whom that thread may still know, until it looks for news again */
};

constexpr size_t most_callers = 16; /* the oldest makes room */
constexpr int backlog = 64;

class Joined : public gloo::Context
{
  public:
    Joined(int own, int ranks, std::shared_ptr<gloo::transport::Device> device, struct mesh *mesh);
    gloo::transport::Context &pairs()
    {
        return *transportContext_;
    }
};

class Pairs : public tcp::Context
{
  public:
    Pairs(std::shared_ptr<tcp::Device> device, int own, int ranks, struct mesh *mesh)
        : tcp::Context(device, own, ranks), mesh_(mesh)
    {
    }
    std::unique_ptr<gloo::transport::Pair> &createPair(int other) override
    {
        pairs_[static_cast<size_t>(other)] = std::make_unique<Guarded>(this, device_.get(), other, getTimeout(), mesh_);
        return pairs_[static_cast<size_t>(other)];
    }

  private:
    struct mesh *const mesh_;
};

Joined::Joined(int own, int ranks, std::shared_ptr<gloo::transport::Device> device, struct mesh *mesh)
    : gloo::Context(own, ranks)
{
    device_ = device;
    transportContext_ = std::make_shared<Pairs>(std::static_pointer_cast<tcp::Device>(device), own, ranks, mesh);
    transportContext_->setTimeout(connect_timeout);
    setTimeout(never);
}

} // namespace

struct mesh_device {
    std::shared_ptr<gloo::transport::Device> device;
    std::unique_ptr<Brake> brake;
    std::mutex mutex;
    std::condition_variable more;
    std::list<struct mesh *> discarded; /* under the mutex: the reaper destroys them */
    bool ending = false;                /* under the mutex */
    pthread_t reaper;
};

struct mesh {
    struct mesh_device *device;
    uint32_t rank, size;
    struct mesh_id id;
    std::mutex mutex;
    bool closing = false;
    std::map<gloo::transport::UnboundBuffer *, uint32_t> waits; /* under the mutex: on which rank */
    std::map<uint32_t, std::string> broken;                     /* likewise: ranks whose pairs have failed */
    std::shared_ptr<Joined> context;                            /* goes first: its thread may be at one of the above */
};

namespace
{

/* A pair is closed: who waits for the rest of what was under way would never hear of it. */
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

void Caller::handleEvents(int)
{
    door_.hear(*this);
}

Guarded::Guarded(tcp::Context *context, tcp::Device *device, int rank, milliseconds timeout, struct mesh *mesh)
    : tcp::Pair(context, device, rank, timeout), mesh_(mesh)
{
    std::lock_guard<std::mutex> lock(m_);
    if (state_ == LISTENING) {
        (void)fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
        (void)::listen(fd_, backlog);
    }
}

/* Gloo's destructor would close it when it is no longer a Guarded one. */
Guarded::~Guarded()
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
    for (auto &caller : callers_)
        device_->unregisterDescriptor(caller->fd, caller.get()); /* waits for the thread: then it knows none of them */
    if (callers_.empty() && !gone_.empty()) {
        Stillness wait(*mesh_->device->brake);
    }
}

Hello Guarded::hello_of(int from, int to) const
{
    Hello hello;

    std::memcpy(hello.token, mesh_->id.token, sizeof hello.token);
    hello.epoch = mesh_->id.epoch;
    hello.from = static_cast<uint32_t>(from);
    hello.to = static_cast<uint32_t>(to);
    return hello;
}

void Guarded::connect(const std::vector<char> &bytes)
{
    tcp::Pair::connect(bytes);
    std::lock_guard<std::mutex> lock(m_);
    Hello hello = hello_of(static_cast<int>(mesh_->rank), rank_);
    throwIfException();
    if (is_client_ && ::send(fd_, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(sizeof hello))
        signalAndThrowException("the connection was closed at once");
}

void Guarded::changeState(state next) noexcept
{
    tcp::Pair::changeState(next);
    if (next != CLOSED)
        return;
    try {
        pair_broken(*mesh_, static_cast<uint32_t>(rank_), ex_ ? text_of(ex_) : "it was closed");
    } catch (...) { /* no memory for the sentence: stall_timeout finds it */
    }
}

void Guarded::handleEvents(int events)
{
    char why[MESH_WHY_BYTES];

    std::lock_guard<std::mutex> busy(busy_);
    if (closing_ || answer_door() || guarded(why, [&] { tcp::Pair::handleEvents(events); }))
        return;
    std::lock_guard<std::mutex> lock(m_);
    if (!ex_) /* else it has failed in the ordinary way */
        signalException(std::string(why));
}

/* false: it is connected, or connecting. */
bool Guarded::answer_door()
{
    std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
    if (!lock)
        return true; /* the socket says so again */
    if (state_ != LISTENING)
        return false;
    gone_.clear();
    int fd = ::accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC), whole = sizeof(Hello);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            if (!callers_.empty())
                drop(*callers_.front()); /* this frees a descriptor for the next one */
            else
                (void)usleep(10000); /* the connection stays in the listener's queue, and the socket stays readable */
        }
        return true;
    }
    (void)::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &whole, sizeof whole);
    char why[MESH_WHY_BYTES];
    (void)guarded(why, [&] {
        auto caller = std::make_unique<Caller>(*this, fd);
        if (callers_.size() == most_callers)
            drop(*callers_.front());
        device_->registerDescriptor(fd, EPOLLIN, caller.get());
        callers_.push_back(std::move(caller));
    });
    return true;
}

/* The device's thread. */
void Guarded::drop(Caller &caller)
{
    device_->unregisterDescriptor(caller.fd, &caller);
    (void)::close(caller.fd);
    caller.fd = -1;
    for (auto at = callers_.begin(); at != callers_.end(); ++at)
        if (at->get() == &caller) {
            gone_.splice(gone_.end(), callers_, at);
            return;
        }
}

void Guarded::hear(Caller &caller)
{
    Hello said, expected = hello_of(rank_, static_cast<int>(mesh_->rank));
    char why[MESH_WHY_BYTES];

    std::lock_guard<std::mutex> busy(busy_);
    if (closing_ || caller.fd < 0)
        return;
    std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
    if (!lock)
        return; /* its socket says so again */
    ssize_t n = ::recv(caller.fd, &said, sizeof said, MSG_PEEK | MSG_DONTWAIT);
    bool good = n == static_cast<ssize_t>(sizeof said) && same_secret(&said, &expected, sizeof said);
    (void)guarded(why, [&] {
        if (good && state_ == LISTENING)
            adopt(caller);
        else if (n >= 0 || (errno != EAGAIN && errno != EINTR))
            drop(caller);
    });
}

/* m_ is held. It takes the place of the listening socket, as whoever came first does with Gloo. */
void Guarded::adopt(Caller &caller)
{
    Hello said;
    int fd = ::dup(caller.fd), one = 1;

    if (fd < 0)
        throw std::runtime_error("no descriptor is left");
    (void)::recv(fd, &said, sizeof said, MSG_DONTWAIT);
    (void)::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    while (!callers_.empty())
        drop(*callers_.front());
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

/* A buffer that somebody waits on: mesh_close finds it. */
class Waited
{
  public:
    Waited(struct mesh *mesh, uint32_t rank, void *memory, size_t bytes)
        : mesh_(mesh), rank_(rank), buffer_(mesh->context->createUnboundBuffer(memory, bytes))
    {
        std::lock_guard<std::mutex> lock(mesh_->mutex);
        check();
        mesh_->waits.emplace(buffer_.get(), rank);
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
    void ended(bool well)
    {
        if (well)
            return;
        std::lock_guard<std::mutex> lock(mesh_->mutex);
        check();
        throw std::runtime_error("it was given up");
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

/* The thread that destroys the meshes that mesh_discard was given. */
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
        device->brake = std::make_unique<Brake>(static_cast<tcp::Device &>(*device->device));
        if (!start_reaper(device.get()))
            throw std::runtime_error("no thread can be started");
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
        /* A mesh that is not complete goes to the reaper, too. */
        std::unique_ptr<struct mesh, void (*)(struct mesh *)> mesh(new struct mesh, mesh_discard);
        mesh->device = device;
        mesh->rank = rank;
        mesh->size = size;
        mesh->id = *id;
        mesh->context = std::make_shared<Joined>(static_cast<int>(rank), static_cast<int>(size), device->device, mesh.get());
        Stillness while_pairs_are_created(*device->brake); /* a pair listens before it is a Guarded one */
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
        Waited buffer(mesh, rank, const_cast<void *>(from), bytes);
        buffer->send(static_cast<int>(rank), slot);
        buffer.ended(buffer->waitSend(never));
    });
}

bool mesh_recv(struct mesh *mesh, uint32_t rank, uint64_t slot, void *to, size_t bytes, char why[MESH_WHY_BYTES])
{
    return guarded(why, [&] {
        Waited buffer(mesh, rank, to, bytes);
        buffer->recv(static_cast<int>(rank), slot);
        buffer.ended(buffer->waitRecv(never));
    });
}

/* The pairs stay: Gloo's way to close one resets its connection. They are closed in the ordinary way when
 * they are destroyed. */
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
