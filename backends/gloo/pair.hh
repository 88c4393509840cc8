/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of Gloo that strangers and broken connections cannot harm.
 *
 * Gloo trusts everybody who connects to its ports, and one thread of Gloo (the device's thread) serves the sockets of all
 * groups, so that an exception in that thread ends the process. It throws when a connection is reset before it is accepted,
 * when bytes are malformed, and when the system refuses a write. And when a pair is cut in the middle of a message, Gloo does
 * not wake the caller that waits for the rest. So every pair here accepts only a connection that shows the group's token, an
 * exception fails that pair alone, and the owner of the pairs learns of each that fails.
 */
#ifndef GLOO_PAIR_HH
#define GLOO_PAIR_HH

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <gloo/context.h>
#include <gloo/transport/tcp/device.h>

#include "backends/gloo/mesh.h"

namespace pairs
{

/* The core has the deadlines; a time-out of Gloo would close every pair. */
const std::chrono::milliseconds never = std::chrono::hours(24 * 365);

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

/* Pauses the device's thread and lets it continue. It does so by a descriptor that is registered once, because Gloo waits up
 * to 10 ms for its thread when a descriptor is unregistered. */
class ThreadPause : public gloo::transport::tcp::Handler
{
  public:
    explicit ThreadPause(gloo::transport::tcp::Device &device) : device_(device), fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))
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
        (void)::eventfd_write(fd_, 1);
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
        (void)::eventfd_read(fd_, &ignored);
        if (!wanted_)
            return;
        paused_ = true;
        changed_.notify_all();
        changed_.wait(lock, [&] { return !wanted_; });
        paused_ = false;
        changed_.notify_all();
    }

  private:
    gloo::transport::tcp::Device &device_;
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

/* The mesh to which pairs belong. */
class Owner
{
  public:
    struct mesh_id id;
    uint32_t rank;
    ThreadPause *pause; /* of the device's thread */

    /* The pair with that rank was closed. Any thread; the caller may hold locks of the pair. */
    virtual void on_broken(uint32_t other, const std::string &why) = 0;

  protected:
    ~Owner() = default;
};

/* The pairs of one rank with all others. The owner must live longer. */
class GroupContext : public gloo::Context
{
  public:
    GroupContext(int own, int ranks, std::shared_ptr<gloo::transport::Device> device, Owner &owner);
    gloo::transport::Context &pairs()
    {
        return *transportContext_;
    }
};

} // namespace pairs

#endif
