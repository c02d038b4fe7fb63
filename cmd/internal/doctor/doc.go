// Package doctor examines a host: which modes work, and what may prevent traffic from reaching VIPs
// and endpoints. "vipctl doctor" prints the findings. The daemon runs some of the checks each
// minute, and reports their findings as problems.
//
//	findings := doctor.Examine(ctx, doctor.Host{Config: c, Status: status, ...})
//
// A Host is the input of the checks. It contains values, and functions that read the system. Data
// that several checks need is read only once. A check is a function that returns findings about the
// host. The function checks lists all of them. Each finding has a level and an observation, and
// often the reason why it matters and a command that fixes it.
//
// Only the mode trials change the host. They create and delete a few kernel objects that receive no
// traffic, and don't affect a running vipd. Trials of kernel modes need root. If a check needs more
// privileges, its finding says so. The package never fixes anything.
package doctor
