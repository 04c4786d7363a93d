"""How gateways and node hosts know each other: TLS with a certificate that the database tells of,
and a word that only who has the servers' secret can say.
"""

import datetime
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stoker.store.secret import ServerSecret

_VALID = datetime.timedelta(days=3650)
"""A node's life: nobody asks what day it is, as each start makes a new one."""
_SLACK = datetime.timedelta(days=1)
"""Clocks differ."""


@dataclass(frozen=True)
class Identity:
    """What a node host proves by that it is itself."""

    certificate: str
    """In PEM, for whoever connects."""
    context: ssl.SSLContext


def new_identity(node_id: str) -> Identity:
    """A key that is kept in memory alone, and its certificate, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The library reads keys from files alone.
    with tempfile.TemporaryDirectory(prefix="stoker-node-") as folder:
        path = Path(folder) / "identity.pem"
        path.touch(mode=0o600)
        path.write_bytes(private + certificate)
        context.load_cert_chain(path)
    return Identity(certificate.decode(), context)


def trusting(certificate: str) -> ssl.SSLContext:
    """For a connection to whoever has the key of this certificate, and to nobody else.

    Raises `ssl.SSLError` where it is none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # It is the certificate that is known, wherever the node is.
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


def token(secret: ServerSecret, certificate: str) -> str:
    """What a gateway says to the node of a certificate: it is of no use at any other."""
    return secret.sign(f"gateway of a node\n{certificate}")
