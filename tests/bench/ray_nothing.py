# SPDX-License-Identifier: Apache-2.0
"""A transport of Ray that moves nothing: the cost of an object with it is Ray's own, and no transport can be faster. For
ray_bench.py."""
import torch
from ray.experimental import CommunicatorMetadata, TensorTransportManager, TensorTransportMetadata, register_tensor_transport


class NothingTransport(TensorTransportManager):
    def tensor_transport_backend(self):
        return "NOTHING"

    @staticmethod
    def is_one_sided():
        return True

    @staticmethod
    def can_abort_transport():
        return True

    def actor_has_tensor_transport(self, actor):
        return True

    def extract_tensor_transport_metadata(self, obj_id, rdt_object):
        return TensorTransportMetadata([(tensor.shape, tensor.dtype) for tensor in rdt_object], "cpu")

    def get_communicator_metadata(self, src_actor, dst_actor, backend=None):
        return CommunicatorMetadata()

    def recv_multiple_tensors(self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None):
        return [torch.empty(0) for _ in tensor_transport_metadata.tensor_meta]

    def send_multiple_tensors(self, tensors, tensor_transport_metadata, communicator_metadata):
        raise NotImplementedError

    def garbage_collect(self, obj_id, tensor_transport_meta, tensors):
        pass

    def abort_transport(self, obj_id, communicator_metadata):
        pass


def register():
    """In the driver, before actors are created: Ray hands it on to them."""
    register_tensor_transport("nothing", ["cpu"], NothingTransport, torch.Tensor)
