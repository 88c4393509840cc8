/* SPDX-License-Identifier: Apache-2.0 */
/* See pair.hh. */
#include "backends/gloo/pair.hh"

#include <cerrno>
#include <list>
#include <vector>

#include <fcntl.h>
#include <sys/socket.h>

#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/pair.h>

using std::chrono::milliseconds;

namespace tcp = gloo::transport::tcp;

namespace pairs
{

namespace
{

const milliseconds connect_timeout = std::chrono::seconds(2); /* Gloo waits five times as long */
constexpr size_t max_strangers = 16; /* the oldest one makes room for the next */
constexpr int backlog = 64;

std::string text_of(std::exception_ptr thrown)
{
    char why[MESH_WHY_BYTES];

    guarded(why, [&] { std::rethrow_exception(thrown); });
    return why;
}

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
    GuardedPair(tcp::Context *context, tcp::Device *device, int rank, milliseconds timeout, Owner &owner);
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

    Owner &owner_;
    std::mutex busy_; /* protects the fields below; the device's thread holds it while it is in this class */
    bool closing_ = false;
    std::list<std::unique_ptr<Stranger>> strangers_;
    std::list<std::unique_ptr<Stranger>> dropped_; /* the device's thread may still have an event for them */
};

class PairContext : public tcp::Context
{
  public:
    PairContext(std::shared_ptr<tcp::Device> device, int own, int ranks, Owner &owner)
        : tcp::Context(device, own, ranks), owner_(owner)
    {
    }
    std::unique_ptr<gloo::transport::Pair> &createPair(int other) override
    {
        pairs_[static_cast<size_t>(other)] = std::make_unique<GuardedPair>(this, device_.get(), other, getTimeout(), owner_);
        return pairs_[static_cast<size_t>(other)];
    }

  private:
    Owner &owner_;
};

void Stranger::handleEvents(int)
{
    pair_.read_hello(*this);
}

GuardedPair::GuardedPair(tcp::Context *context, tcp::Device *device, int rank, milliseconds timeout, Owner &owner)
    : tcp::Pair(context, device, rank, timeout), owner_(owner)
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
        PausedThread wait(*owner_.pause);
    }
}

Hello GuardedPair::hello_of(int from, int to) const
{
    Hello hello;

    std::memcpy(hello.token, owner_.id.token, sizeof hello.token);
    hello.epoch = owner_.id.epoch;
    hello.from = static_cast<uint32_t>(from);
    hello.to = static_cast<uint32_t>(to);
    return hello;
}

void GuardedPair::connect(const std::vector<char> &bytes)
{
    tcp::Pair::connect(bytes);
    std::lock_guard<std::mutex> lock(m_);
    Hello hello = hello_of(static_cast<int>(owner_.rank), rank_);
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
        owner_.on_broken(static_cast<uint32_t>(rank_), ex_ ? text_of(ex_) : "the connection was closed");
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
    Hello hello, expected = hello_of(rank_, static_cast<int>(owner_.rank));
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

} // namespace

GroupContext::GroupContext(int own, int ranks, std::shared_ptr<gloo::transport::Device> device, Owner &owner)
    : gloo::Context(own, ranks)
{
    device_ = device;
    transportContext_ = std::make_shared<PairContext>(std::static_pointer_cast<tcp::Device>(device), own, ranks, owner);
    transportContext_->setTimeout(connect_timeout);
    setTimeout(never);
}

} // namespace pairs
