"""Mutual authentication of gateways and node hosts: TLS with a certificate from the database, and a
token that requires the servers' secret.
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
"""Validity of a certificate. It only has to outlast the node's process, because each start creates
a new one.
"""
_SLACK = datetime.timedelta(days=1)
"""Tolerance for clocks that differ."""


@dataclass(frozen=True)
class Identity:
    """Certificate and key that authenticate a node host."""

    certificate: str
    """Certificate in PEM, for connecting gateways."""
    context: ssl.SSLContext


def new_identity(node_id: str) -> Identity:
    """Returns a new key, which is kept in memory only, with a self-signed certificate."""
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
    # The library reads keys from files only.
    with tempfile.TemporaryDirectory(prefix="stoker-node-") as folder:
        path = Path(folder) / "identity.pem"
        path.touch(mode=0o600)
        path.write_bytes(private + certificate)
        context.load_cert_chain(path)
    return Identity(certificate.decode(), context)


def trusting(certificate: str) -> ssl.SSLContext:
    """Returns a TLS context that trusts only the owner of this certificate's key.

    Raises `ssl.SSLError` if the text is not a certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The certificate identifies the node, regardless of its address.
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


def token(secret: ServerSecret, certificate: str) -> str:
    """Returns the token that a gateway sends to the node of a certificate. It is useless for any
    other node.
    """
    return secret.sign(f"gateway of a node\n{certificate}")
