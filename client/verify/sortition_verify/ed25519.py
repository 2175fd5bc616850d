"""Verification of Ed25519 signatures (RFC 8032, section 5.1.7), in Python alone.

Takes the equation without the cofactor, as OpenSSL and browsers do. Slow, some milliseconds a signature, and not for
secrets: it signs nothing.
"""

import hashlib
from typing import Optional, Tuple

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)  # square root of -1

Point = Tuple[int, int, int, int]  # X, Y, Z, T with x = X / Z, y = Y / Z, x y = T / Z


def decoded(data: bytes) -> Optional[Point]:
    """The point that 32 bytes encode, or None."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    if y >= P:
        return None
    u, v = (y * y - 1) % P, (D * y * y + 1) % P
    x = u * pow(v, 3, P) * pow(u * pow(v, 7, P), (P - 5) // 8, P) % P
    if v * x * x % P == P - u:
        x = x * ROOT % P
    if v * x * x % P != u or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


def encoded(point: Point) -> bytes:
    inverse = pow(point[2], P - 2, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def added(one: Point, other: Point) -> Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % P
    b = (one[1] + one[0]) * (other[1] + other[0]) % P
    c, d = 2 * one[3] * other[3] * D % P, 2 * one[2] * other[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiplied(factor: int, point: Point) -> Point:
    product: Point = (0, 1, 1, 0)
    while factor:
        if factor & 1:
            product = added(product, point)
        point, factor = added(point, point), factor >> 1
    return product


BASE = decoded((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
assert BASE is not None


def verifies(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """True if the 64 bytes are the public key's signature over the message."""
    point, s = decoded(public_key), int.from_bytes(signature[32:], "little")
    if point is None or s >= ORDER or len(signature) != 64:
        return False
    hashed = int.from_bytes(hashlib.sha512(signature[:32] + public_key + message).digest(), "little") % ORDER
    negative = (P - point[0], point[1], 1, P - point[3])
    return encoded(added(multiplied(s, BASE), multiplied(hashed, negative))) == signature[:32]
