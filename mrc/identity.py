"""Who a listener is: a private key and a certificate that nobody signed, known by its fingerprint.

Peers do not ask who vouches for it: the URL they were given names the fingerprint. So no date and
no name in the certificate means anything. A file can keep it, so that the fingerprint stays.
"""

from __future__ import annotations

import base64
import datetime as dt
import errno
import hashlib
import os
import secrets
import ssl
import stat
import tempfile
from contextlib import suppress
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mrc.errors import ConfigError, LocalError

IDENTITY_BYTES_MAX = 64 * 1024
_BORN = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_NEVER = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
"""What RFC 5280 §4.1.2.5 has for no end."""
_PRIVATE = 0o600
_OTHERS_ACCESS = 0o077


class Identity:
    """A private key and the certificate that goes with it.

    Attributes:
        pem: both, as OpenSSL reads them.
        name: what messages call it.
    """

    def __init__(self, pem: bytes, name: str = "the identity") -> None:
        self.pem = pem
        self.name = name

    @classmethod
    def new(cls) -> Self:
        """Make a key, and a certificate that it signed itself."""
        # P-256 and not Ed25519: every build of OpenSSL takes it, those that keep to FIPS too.
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mrc")])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_BORN)
            .not_valid_after(_NEVER)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return cls(private + certificate.public_bytes(serialization.Encoding.PEM))

    @classmethod
    def load(cls, path: str) -> Self:
        """Read the identity in a file, or make one there if the file is missing.

        Raises:
            ConfigError: others may read it.
            LocalError: it can be neither read nor made.
        """
        try:
            try:
                return cls._read(path)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    # Another listener may be faster; theirs is as good.
                    _write(path, cls.new().pem)
                return cls._read(path)
        except OSError as error:
            raise _trouble(error, path) from error

    @classmethod
    def _read(cls, path: str) -> Self:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            mode = found.st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "is no file")
            if mode & _OTHERS_ACCESS:
                raise ConfigError(
                    f"{path}: others may read this private key; if nobody has, chmod 600 it, else"
                    " remove it and let it be made anew"
                )
            if found.st_uid not in (0, os.geteuid()):
                raise ConfigError(
                    f"{path}: belongs to another user, who may know this private key; remove it and"
                    " let it be made anew"
                )
            return cls(file.read(IDENTITY_BYTES_MAX), path)

    def fingerprint(self) -> str:
        """Return how a URL names it.

        Raises:
            ConfigError: there is no certificate.
        """
        try:
            certificate = x509.load_pem_x509_certificate(self.pem)
        except ValueError as error:
            raise ConfigError(f"{self.name}: the certificate cannot be read: {error}") from error
        return fingerprint_of(certificate.public_bytes(serialization.Encoding.DER))

    def context(self) -> ssl.SSLContext:
        """Return a listener's side of TLS 1.3.

        Raises:
            ConfigError: it is no private key with its certificate.
            LocalError: there is no place for a temporary file.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Nobody resumes a session, and nobody gets a byte beyond the handshake.
        context.num_tickets = 0
        try:
            # `ssl` reads files only; this one is its owner's alone, and gone at once.
            with tempfile.NamedTemporaryFile(prefix="mrc-") as file:
                file.write(self.pem)
                file.flush()
                context.load_cert_chain(file.name, password=self._passphrase)
        except ssl.SSLError as error:
            raise ConfigError(
                f"{self.name}: no private key with its certificate ({error.reason or error})"
            ) from error
        except OSError as error:
            raise _trouble(error, tempfile.gettempdir()) from error
        return context

    def _passphrase(self) -> str:
        raise ConfigError(f"{self.name}: the private key must be readable without a passphrase")


def _write(path: str, pem: bytes) -> None:
    """Write a new file, whole or not at all.

    Raises:
        FileExistsError: there is one by now.
        OSError: it cannot be made.
    """
    temporary = f"{path}.{secrets.token_hex(8)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(fd)
        os.link(temporary, path)
    finally:
        os.unlink(temporary)


def _trouble(error: OSError, path: str) -> LocalError:
    return LocalError(error.errno or errno.EIO, error.strerror or str(error), path)


def base64url(data: bytes) -> str:
    """Spell bytes so that neither a URL nor a shell minds."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def fingerprint_of(certificate: bytes) -> str:
    """Return how a URL names a certificate (DER)."""
    return base64url(hashlib.sha256(certificate).digest())
