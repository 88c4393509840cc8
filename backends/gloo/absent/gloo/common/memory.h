/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo's headers of pairs include this one, which Debian's libgloo-dev leaves out. Where there is Gloo's own,
 * that is taken. Here is what mesh.cc needs of it: how large the pointers are. All that uses them is inside
 * the library. */
#pragma once

#include <memory>

namespace gloo
{

template <typename T> class WeakNonOwningPtr
{
    std::weak_ptr<T> pointer_;
};

template <typename T> class NonOwningPtr
{
    std::shared_ptr<T> pointer_;
};

} // namespace gloo
