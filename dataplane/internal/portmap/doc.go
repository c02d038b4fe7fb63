// Package portmap keeps maps from ranges of ports to numbers in nf_tables. A mode redirects the
// packets of a range to the port with this number, or uses the number as their mark.
//
// A map has its own table in each family, which exists only while the map has entries. So hosts
// without ranges of ports have no additional rules. The chains have the priority that the caller
// chooses. Each change is one transaction, so ranges can be divided and joined without a gap.
//
// The kernel refuses ranges that overlap. [Narrowest] divides the ports of an address among its
// frontends.
//
//	redirects := portmap.New(conn, inet.IPv4, kind)
//	err := redirects.Set(ctx, map[balancer.Key]uint32{{Addr: vip, Port: balancer.AllPorts, Proto: balancer.TCP}: 4000})
//
// Tables need Linux 5.6, which introduced ranges in concatenations.
package portmap
