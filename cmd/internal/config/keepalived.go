package config

// OtherNames maps keepalived's vrrp_instance settings to hints about vipd's equivalent settings.
func (*VRRP) OtherNames() map[string]string {
	const (
		delay  = "vipd owner announces VIPs at once; [ownership] announce_every repeats the announcements"
		script = `a host can't own a VIP if a service on it has no usable endpoint; see require in [vips."ADDRESS"]`
		notify = "write [hooks] on_vip"
		none   = "vipd has no equivalent setting"
	)
	return map[string]string{
		"advert_int": `write advert_interval, such as "1s"`, "virtual_router_id": "write router_id", "vrrp_version": "write version",
		"unicast_peer": "write peers", "unicast_src_ip": "write source", "auth_pass": "write password, with version = 2",
		"auth_type": "write password, with version = 2", "authentication": "write password, with version = 2", "mcast_src_ip": "write source",
		"nopreempt": `write preempt = "never", the default`, "preempt_delay": `write preempt, such as "30s"`,
		"state": "leave it out: each host starts as a backup, and the highest priority owns the group", "down_timer_adverts": "write down_adverts",
		"virtual_ipaddress": `write [vips."ADDRESS"] with hold = "one" for each address`, "virtual_ipaddress_excluded": "write advertise with the addresses that are not excluded",
		"garp_master_delay": delay, "garp_master_refresh": delay, "garp_master_repeat": delay, "garp_master_refresh_repeat": delay, "garp_lower_prio_delay": delay,
		"track_interface": "leave it out: if an interface is down, the host gives its VIPs to other hosts", "track_script": script, "track_process": script, "track_file": script,
		"notify": notify, "notify_master": notify, "notify_backup": notify, "notify_fault": notify, "notify_stop": notify,
		"use_vmac": none + ": VIPs use the host's MAC address", "virtual_routes": none, "virtual_rules": none, "lvs_sync_daemon_interface": none,
	}
}
