"""A DNS server on 127.0.0.1:53 that knows one name: store.test is 127.0.0.1, and has no IPv6 address."""

import socket

QUESTION_A = b"\x05store\x04test\x00\x00\x01\x00\x01"
QUESTION_AAAA = b"\x05store\x04test\x00\x00\x1c\x00\x01"
ADDRESS = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04\x7f\x00\x00\x01"

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
while True:
    message, client = server.recvfrom(512)
    number, body = message[:2], message[12:]
    if body.startswith(QUESTION_A):
        answer = b"\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00" + QUESTION_A + ADDRESS
    elif body.startswith(QUESTION_AAAA):
        answer = b"\x81\x80\x00\x01\x00\x00\x00\x00\x00\x00" + QUESTION_AAAA
    else:
        # Only the head: no such name.
        answer = b"\x81\x83\x00\x00\x00\x00\x00\x00\x00\x00"
    server.sendto(number + answer, client)
