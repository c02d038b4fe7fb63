// Package resolve finds the addresses of endpoints that services define by name: hosts (A and AAAA
// records), SRV records, and programs that print addresses.
//
//	balancer.Lookup -> Client.Answer -> hosts file, DNS servers, program -> Answer
//
// If a lookup fails or its answer is empty, the last good answer remains in use. The caller repeats
// lookups. Client sends queries like the C library's resolver, with the servers, search domains and
// options of resolv.conf. It has no cache. Answer.TTL is the time after which the records expire.
//
// Limits: DNS over UDP and TCP only, without DNSSEC; the options rotate, trust-ad and use-vc, and
// nsswitch.conf, have no effect.
package resolve
