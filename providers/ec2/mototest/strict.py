# SPDX-FileCopyrightText: The Cadastre Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs moto_server with the rules of EC2 that moto 5 leaves out.

Each rule names the deviation of moto that it corrects. Everything else is moto's.
"""

import functools
import ipaddress
import threading

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models import elastic_network_interfaces as enis
from moto.ec2.models import instances, subnets
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses.elastic_network_interfaces import ElasticNetworkInterfaces
from moto.server import main

LOCK = threading.RLock()
PICKED = {}  # the last address of each range
CALL = threading.local()
PAGE = 50  # interfaces of an answer, so that tests read several pages


def locked(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        with LOCK:
            CALL.picked, CALL.vpc = set(), None
            return function(*args, **kwargs)

    return call


def interfaces():
    for account in list(ec2_backends.values()):
        for backend in list(account.values()):
            yield from list(backend.enis.values())


def taken():
    """Returns all addresses and prefixes that interfaces of the call's VPC have."""
    single, blocks = set(getattr(CALL, "picked", ())), []
    for eni in interfaces():
        if getattr(CALL, "vpc", None) not in (None, eni.subnet.vpc_id):
            continue
        single.update(ipaddress.ip_address(a["PrivateIpAddress"]) for a in eni.private_ip_addresses)
        single.update(ipaddress.ip_address(a) for a in eni.ipv6_addresses)
        for attribute, key in (("ipv4_prefixes", "Ipv4Prefix"), ("ipv6_prefixes", "Ipv6Prefix")):
            blocks += [ipaddress.ip_network(p[key]) for p in getattr(eni, attribute, [])]
    return single, blocks


def full():
    raise EC2ClientError(
        "InsufficientFreeAddressesInSubnet",
        "The specified subnet does not have enough free addresses to satisfy the request.",
    )


# moto picks at random: two interfaces may get one address, and the subnet's reserved ones.
def pick(cidr=None, ipv6=False):
    net = ipaddress.ip_network(cidr)
    single, blocks = taken()
    first, last = int(net.network_address) + 4, int(net.broadcast_address) - 1
    key = (getattr(CALL, "vpc", None), cidr)
    begin = PICKED.get(key, first - 1) + 1
    for step in range(min(last - first + 1, len(single) + 16 * len(blocks) + 2)):
        at = first + (begin - first + step) % (last - first + 1)
        address = type(net.network_address)(at)
        if address in single or any(address in b for b in blocks):
            continue
        PICKED[key] = at
        CALL.picked = getattr(CALL, "picked", set()) | {address}
        return str(address)
    full()


enis.random_private_ip = pick


@locked
def first_address(self, instance):
    CALL.vpc = self.vpc_id
    return pick(str(self.cidr))


subnets.Subnet.get_available_subnet_ip = first_address


# moto nests the state of an IPv6 range twice.
subnets.Subnet.ipv6_cidr_block_association_set = property(
    lambda self: [
        {"Ipv6CidrBlock": a["ipv6CidrBlock"], "AssociationId": a["associationId"], "Ipv6CidrBlockState": a["ipv6CidrBlockState"]}
        for a in self.ipv6_cidr_block_associations.values()
        if a["ipv6CidrBlockState"]["State"] == "associated"
    ]
)


# moto counts the addresses of an interface only.
AVAILABLE = subnets.Subnet.available_ip_address_count.fget
subnets.Subnet.available_ip_address_count = property(
    lambda self: AVAILABLE(self)
    - sum(16 * len(getattr(eni, "ipv4_prefixes", [])) for eni in interfaces() if eni.subnet.id == self.id)
)


# moto has no prefixes. This models an interface with prefixes, from the end of its subnet.
def pick_prefix(net, length):
    single, blocks = taken()
    size = 1 << (net.max_prefixlen - length)
    at = int(net.broadcast_address) + 1 - size
    for _ in range(min(1 << (length - net.prefixlen), 4096)):
        prefix = ipaddress.ip_network((at, length))
        at -= size
        if prefix[0] == net[0] or prefix[-1] == net[-1]:
            continue
        if not any(b.overlaps(prefix) for b in blocks) and not any(a in prefix for a in single if a.version == net.version):
            return str(prefix)
    raise EC2ClientError("InsufficientCidrBlocks", "There are not enough free cidr blocks in the specified subnet to satisfy the request.")


def add_prefixes(eni, count4, count6):
    for attribute in ("ipv4_prefixes", "ipv6_prefixes"):
        if not hasattr(eni, attribute):
            setattr(eni, attribute, [])
    new4, new6 = [], []
    try:
        for _ in range(count4):
            new4.append({"Ipv4Prefix": pick_prefix(eni.subnet.cidr, 28)})
            eni.ipv4_prefixes.append(new4[-1])
        for _ in range(count6):
            new6.append({"Ipv6Prefix": pick_prefix(range6(eni.subnet), 80)})
            eni.ipv6_prefixes.append(new6[-1])
    except EC2ClientError:  # EC2 assigns all or none
        for p in new4:
            eni.ipv4_prefixes.remove(p)
        for p in new6:
            eni.ipv6_prefixes.remove(p)
        raise
    return new4, new6


def range6(subnet):
    for association in subnet.ipv6_cidr_block_associations.values():
        return ipaddress.ip_network(association["ipv6CidrBlock"])
    raise EC2ClientError("InvalidParameterValue", "The subnet has no IPv6 CIDR block.")


# moto knows no limit of addresses of an interface, or of interfaces of a machine.
def limit(eni, more4, more6, instance=None):
    instance = instance or eni.instance
    if instance is None:
        return
    network = INSTANCE_TYPES[instance.instance_type]["NetworkInfo"]
    has4 = len(eni.private_ip_addresses) + len(getattr(eni, "ipv4_prefixes", []))
    has6 = len(eni.ipv6_addresses) + len(getattr(eni, "ipv6_prefixes", []))
    if has4 + more4 > network["Ipv4AddressesPerInterface"]:
        raise EC2ClientError("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
    if more6 and has6 + more6 > network.get("Ipv6AddressesPerInterface", 0):
        raise EC2ClientError("PrivateIpAddressLimitExceeded", "Number of IPv6 addresses will exceed limit.")


class Responses:
    """Methods that replace those of moto's class. MOTO has the replaced ones."""

    # moto answers with all addresses; EC2 with the new ones.
    @locked
    def assign_private_ip_addresses(self):
        eni = self.ec2_backend.get_network_interface(self._get_param("NetworkInterfaceId"))
        CALL.vpc = eni.subnet.vpc_id
        count = self._get_int_param("SecondaryPrivateIpAddressCount", 0)
        prefixes = self._get_int_param("Ipv4PrefixCount", 0)
        limit(eni, count + prefixes, 0)
        new = [{"Primary": False, "PrivateIpAddress": pick(eni.subnet.cidr_block)} for _ in range(count)]
        blocks, _ = add_prefixes(eni, prefixes, 0)
        eni.private_ip_addresses.extend(new)
        return ActionResult(
            {"NetworkInterfaceId": eni.id, "AssignedPrivateIpAddresses": new, "AssignedIpv4Prefixes": blocks}
        )

    @locked
    def assign_ipv6_addresses(self):
        eni = self.ec2_backend.get_network_interface(self._get_param("NetworkInterfaceId"))
        CALL.vpc = eni.subnet.vpc_id
        count = self._get_int_param("Ipv6AddressCount", 0)
        prefixes = self._get_int_param("Ipv6PrefixCount", 0)
        limit(eni, 0, count + prefixes)
        new = [pick(str(range6(eni.subnet)), True) for _ in range(count)]
        _, blocks = add_prefixes(eni, 0, prefixes)
        eni.ipv6_addresses.extend(new)
        return ActionResult(
            {
                "NetworkInterfaceId": eni.id,
                "AssignedIpv6Addresses": new,
                "AssignedIpv6Prefixes": [b["Ipv6Prefix"] for b in blocks],
            }
        )

    # moto ignores addresses that the interface does not have, and removes the primary one.
    @locked
    def unassign_private_ip_addresses(self):
        eni = self.ec2_backend.get_network_interface(self._get_param("NetworkInterfaceId"))
        addresses = self._get_param("PrivateIpAddresses", [])
        prefixes = self._get_param("Ipv4Prefixes", [])
        has = {a["PrivateIpAddress"] for a in eni.private_ip_addresses if a["PrivateIpAddress"] != eni.private_ip_address}
        blocks = {p["Ipv4Prefix"] for p in getattr(eni, "ipv4_prefixes", [])}
        if not set(addresses) <= has or not set(prefixes) <= blocks:
            raise EC2ClientError(
                "InvalidParameterValue", f"Some of the specified addresses are not assigned to interface {eni.id}"
            )
        if prefixes:
            eni.ipv4_prefixes = [p for p in eni.ipv4_prefixes if p["Ipv4Prefix"] not in prefixes]
        return MOTO["unassign_private_ip_addresses"](self)

    @locked
    def unassign_ipv6_addresses(self):
        eni = self.ec2_backend.get_network_interface(self._get_param("NetworkInterfaceId"))
        addresses = self._get_param("Ipv6Addresses", [])
        prefixes = self._get_param("Ipv6Prefixes", [])
        blocks = {p["Ipv6Prefix"] for p in getattr(eni, "ipv6_prefixes", [])}
        if not set(addresses) <= set(eni.ipv6_addresses) or not set(prefixes) <= blocks:
            raise EC2ClientError(
                "InvalidParameterValue", f"Some of the specified addresses are not assigned to interface {eni.id}"
            )
        if prefixes:
            eni.ipv6_prefixes = [p for p in eni.ipv6_prefixes if p["Ipv6Prefix"] not in prefixes]
        return MOTO["unassign_ipv6_addresses"](self)

    # moto ignores the client token.
    @locked
    def create_network_interface(self):
        tokens = self.ec2_backend.__dict__.setdefault("client_tokens", {})
        token = self._get_param("ClientToken")
        if token in tokens:
            return ActionResult({"NetworkInterface": tokens[token], "ClientToken": token})
        CALL.vpc = self.ec2_backend.get_subnet(self._get_param("SubnetId")).vpc_id
        result = MOTO["create_network_interface"](self)
        eni = result.result["NetworkInterface"]
        try:
            add_prefixes(eni, self._get_int_param("Ipv4PrefixCount", 0), self._get_int_param("Ipv6PrefixCount", 0))
        except EC2ClientError:
            self.ec2_backend.enis.pop(eni.id)
            raise
        if token:
            tokens[token] = eni
        return result

    # moto deletes an interface that a machine has.
    @locked
    def delete_network_interface(self):
        eni = self.ec2_backend.get_network_interface(self._get_param("NetworkInterfaceId"))
        if eni.instance is not None:
            raise EC2ClientError("InvalidParameterValue", f"Network interface '{eni.id}' is currently in use.")
        return MOTO["delete_network_interface"](self)

    # moto attaches an interface twice, over another one, or to a machine that has no room.
    @locked
    def attach_network_interface(self):
        eni = self.ec2_backend.get_network_interface(self._get_param("NetworkInterfaceId"))
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        device = int(self._get_param("DeviceIndex"))
        if instance._state.name == "terminated":
            raise EC2ClientError("IncorrectInstanceState", f"Instance '{instance.id}' is not 'running' or 'stopped'.")
        if eni.instance is not None:
            raise EC2ClientError("InvalidNetworkInterface.InUse", f"Interface: [{eni.id}] in use.")
        if device in instance.nics:
            raise EC2ClientError(
                "InvalidParameterValue",
                f"Instance '{instance.id}' already has an interface attached at device index '{device}'.",
            )
        if eni.subnet.availability_zone != instance.nics[0].subnet.availability_zone:
            raise EC2ClientError("InvalidParameterCombination", "The interface and the instance are in different zones.")
        if len(instance.nics) >= INSTANCE_TYPES[instance.instance_type]["NetworkInfo"]["MaximumNetworkInterfaces"]:
            raise EC2ClientError("AttachmentLimitExceeded", "Interface count exceeds the limit for the instance type.")
        limit(eni, 0, 0, instance)
        return MOTO["attach_network_interface"](self)

    # moto ignores DeleteOnTermination here.
    @locked
    def modify_network_interface_attribute(self):
        eni = self.ec2_backend.get_network_interface(self._get_param("NetworkInterfaceId"))
        attachment = self._get_param("Attachment", {})
        if attachment:
            if attachment.get("AttachmentId") != eni.attachment_id:
                raise EC2ClientError("InvalidAttachmentID.NotFound", "The attachment does not exist.")
            eni.delete_on_termination = str(attachment.get("DeleteOnTermination")).lower() == "true"
        return MOTO["modify_network_interface_attribute"](self)

    # moto answers with one page.
    @locked
    def describe_network_interfaces(self):
        result = MOTO["describe_network_interfaces"](self)
        if self._get_param("NetworkInterfaceIds", []):
            return result
        found = sorted(result.result["NetworkInterfaces"], key=lambda eni: eni.id)
        start = int(self._get_param("NextToken") or 0)
        result.result["NetworkInterfaces"] = found[start : start + PAGE]
        if start + PAGE < len(found):
            result.result["NextToken"] = str(start + PAGE)
        return result


MOTO = {name: getattr(ElasticNetworkInterfaces, name) for name in vars(Responses) if not name.startswith("_")}
for name in MOTO:
    setattr(ElasticNetworkInterfaces, name, vars(Responses)[name])


# moto leaves interfaces attached to a terminated machine, and deletes none of them.
TERMINATE = instances.Instance.terminate


@locked
def terminate(self):
    for eni in list(self.nics.values()):
        if eni.device_index == 0:
            eni.delete_on_termination = True
    previous = TERMINATE(self)
    for eni in list(self.nics.values()):
        if not eni.delete_on_termination:
            self.detach_eni(eni)
    return previous


instances.Instance.terminate = terminate

if __name__ == "__main__":
    main()
