// Package resolve finds the addresses of endpoints that services define by name: hosts (A and AAAA
// records), SRV records, and programs that print addresses.
//
//	balancer.Lookup -> Client.Answer -> hosts file, DNS servers, program -> Answer
//
// If a lookup fails or its answer is empty, the last good answer remains in use. Callers must
// repeat lookups. Client sends queries as the C library's resolver does, with the servers, search
// domains and options in resolv.conf. It has no cache; records expire after Answer.TTL.
//
// Limits: Client supports only DNS over UDP and TCP, without DNSSEC. The options rotate, trust-ad
// and use-vc have no effect, and neither does nsswitch.conf.
package resolve
