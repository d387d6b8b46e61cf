use super::read::prefix_end;

#[test]
fn the_end_of_a_prefix() {
    assert_eq!(prefix_end(b"/calico/"), b"/calico0");
    assert_eq!(prefix_end(&[1, 255, 255]), [2]);
    assert_eq!(prefix_end(&[255, 255]), [0]);
    assert_eq!(prefix_end(b""), [0]);
}
