//! Monitoring stations as text.

use std::fmt::Write;

use caracal_bgp::Station;

use super::quoted;
use crate::RenderError;
use crate::pieces::address;

/// Text behind `#: bmp`.
pub(super) fn line(name: &str, station: &Station) -> Result<String, RenderError> {
    let inexpressible = |value: String, reason| RenderError::Inexpressible {
        what: format!("monitoring station {name:?}"),
        value,
        reason,
    };
    let mut line = format!(
        "{} station {} port {}",
        quoted(name),
        address(station.address),
        station.port
    );
    for (on, word) in [
        (station.pre_policy, " pre_policy"),
        (station.post_policy, " post_policy"),
    ] {
        line.push_str(if on { word } else { "" });
    }
    if let Some(every) = station.statistics {
        let seconds = u32::try_from(every.as_secs());
        let Some(seconds) = seconds.ok().filter(|_| every.subsec_nanos() == 0) else {
            let reason = "times are whole seconds up to 4294967295";
            return Err(inexpressible(format!("{every:?}"), reason));
        };
        let _ = write!(line, " statistics {seconds}");
    }
    let Ok(buffer) = u32::try_from(station.buffer) else {
        let value = station.buffer.to_string();
        return Err(inexpressible(value, "a buffer has less than 4 GiB"));
    };
    let _ = write!(line, " buffer {buffer}");
    for (word, text) in [
        ("name", &station.system_name),
        ("description", &station.system_description),
    ] {
        if let Some(text) = text {
            let _ = write!(line, " {word} {}", quoted(text));
        }
    }
    Ok(line)
}
