// Package portmap maintains maps from port ranges to numbers in nf_tables. A mode redirects packets
// to a range to the port with the range's number, or marks them with the number.
//
// A map has its own table in each family, which exists only while the map has entries. So hosts
// without port ranges have no additional rules. The caller chooses the chains' priority. Each
// change is one transaction, so ranges can be divided and joined without a gap.
//
// The kernel refuses ranges that overlap. [Narrowest] divides an address's ports among its
// frontends.
//
//	redirects := portmap.New(conn, inet.IPv4, kind)
//	err := redirects.Set(ctx, map[balancer.Key]uint32{{Addr: vip, Port: balancer.AllPorts, Proto: balancer.TCP}: 4000})
//
// Tables need Linux 5.6, which introduced ranges in concatenated keys.
package portmap
