// Package heartbeat carries the messages of VIP ownership between hosts: datagrams of UDP, signed with a key that the fleet
// shares.
//
// A datagram is the text of Encode and an HMAC-SHA256 of it. What it says is good for one session and one time of its sender,
// so that an old one that is replayed by another host changes nothing: the newest heartbeat counts.
package heartbeat
